"""Sign-in."""

from typing import Final

SESSIONS_MAX: Final = 10_000
"""Sessions of people who signed in by a provider, in one lake. Beyond: nobody else is signed in until some end."""
SESSIONS_EACH_MAX: Final = 20
"""Sessions of one person. Beyond: the oldest ends."""
SESSIONS_ERASED_MAX: Final = 100
"""Sessions that are over and are removed by one sign-in. Beyond: the next removes more."""
SIGN_IN_BEGUN_MAX_S: Final = 600
"""How long a browser may be at the provider. Beyond: it begins again."""
SIGN_IN_SECRET_KEPT_S: Final = 60.0
"""How old the secret of the lake is at most by which what a browser holds meanwhile is signed. Beyond: it is read
again."""
SIGN_IN_NEXT_MAX_BYTES: Final = 1_024
"""The address that signing in leads to. Beyond: it leads to the first page."""
SIGN_IN_CODE_MAX_CHARS: Final = 4_096
"""The code that a provider gives to a browser. Beyond: it is refused."""
PROVIDER_WAIT_S: Final = 10.0
"""How long an answer of a provider may take, all of it. Beyond: a page says so; keys go on working."""
PROVIDER_ANSWER_MAX_BYTES: Final = 512 * 1024
"""An answer of a provider. Beyond: the same."""
PROVIDER_REQUESTS_MAX: Final = 16
"""Requests to a provider at once. Beyond: the next wait, and are told to try again where that takes long."""
PROVIDER_KEPT_S: Final = 3_600.0
"""How long what a provider says of itself counts. Beyond: it is read again; its keys also where one is not among
them."""
PROVIDER_KEYS_AGAIN_S: Final = 10.0
"""How old they are at least when they are read again because none has signed what somebody comes with. Beyond: they
are."""
PROVIDER_KEYS_MAX: Final = 100
"""Keys of a provider. Beyond: they are refused, all of them."""
RSA_MIN_BITS: Final = 2_048
"""A key of a provider, where it is of RSA, has so many at least. Beyond: one with fewer is none."""
RSA_MAX_BITS: Final = 6_144
"""The same. Beyond: it is none."""
ID_TOKEN_MAX_CHARS: Final = 65_536
"""What a provider says of a person. Beyond: nobody is signed in."""
PROVIDER_SKEW_MAX_S: Final = 60
"""How far the clock of a provider may be from ours. Beyond: what it says is expired, or of the future."""
CLAIM_VALUES_MAX: Final = 10_000
"""Values of a claim, such as groups, that are looked at. Beyond: those that follow count for nothing."""
SUBJECT_MAX_CHARS: Final = 255
"""What a provider calls a person, as OpenID Connect has it. Beyond: nobody is signed in."""
CLIENT_SECRET_MAX_CHARS: Final = 4_096
"""The secret that a server shows to a provider, in its file. Beyond: it is refused."""

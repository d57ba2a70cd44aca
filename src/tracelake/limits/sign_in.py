"""Sign-in."""

from typing import Final

SESSIONS_MAX: Final = 10_000
"""Provider sign-in sessions of one lake. Beyond: no new sign-ins until some sessions end."""
SESSIONS_EACH_MAX: Final = 20
"""Sessions of one person. Beyond: the oldest ends."""
SESSIONS_ERASED_MAX: Final = 100
"""Expired sessions that one sign-in deletes. Beyond: the next sign-in deletes more."""
SIGN_IN_BEGUN_MAX_S: Final = 600
"""Time that a browser may spend at the provider. Beyond: the user starts again."""
SIGN_IN_SECRET_KEPT_S: Final = 60.0
"""Age of the cached lake secret that signs the browser's state cookie. Beyond: it is read again."""
SIGN_IN_NEXT_MAX_BYTES: Final = 1_024
"""Redirect target after sign-in. Beyond: the user lands on the first page."""
SIGN_IN_CODE_MAX_CHARS: Final = 4_096
"""Code that a provider gives to a browser. Beyond: it is refused."""
PROVIDER_WAIT_S: Final = 10.0
"""Time for a complete response of a provider. Beyond: a page reports it; API keys keep working."""
PROVIDER_ANSWER_MAX_BYTES: Final = 512 * 1024
"""Response of a provider. Beyond: a page reports it; API keys keep working."""
PROVIDER_REQUESTS_MAX: Final = 16
"""Concurrent requests to a provider. Beyond: the next wait, and are asked to try again after a long wait."""
PROVIDER_KEPT_S: Final = 3_600.0
"""Cache time of a provider's metadata and keys. Beyond: they are read again; an unknown key reloads keys earlier."""
PROVIDER_KEYS_AGAIN_S: Final = 10.0
"""Minimum age of cached provider keys before an unknown key reloads them. Beyond: they are read again."""
PROVIDER_KEYS_MAX: Final = 100
"""Keys of a provider. Beyond: all of them are refused."""
RSA_MIN_BITS: Final = 2_048
"""Smallest RSA key of a provider. Beyond: a smaller key is ignored."""
RSA_MAX_BITS: Final = 6_144
"""Largest RSA key of a provider. Beyond: a larger key is ignored."""
ID_TOKEN_MAX_CHARS: Final = 65_536
"""ID token of a provider. Beyond: the sign-in fails."""
PROVIDER_SKEW_MAX_S: Final = 60
"""Clock skew between a provider and this server. Beyond: its token is expired, or not valid yet."""
CLAIM_VALUES_MAX: Final = 10_000
"""Values of a claim, such as groups, that are read. Beyond: further values are ignored."""
SUBJECT_MAX_CHARS: Final = 255
"""Subject identifier of a person, as OpenID Connect defines it. Beyond: the sign-in fails."""
CLIENT_SECRET_MAX_CHARS: Final = 4_096
"""Client secret in its file. Beyond: it is refused."""

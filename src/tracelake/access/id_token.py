"""What a provider says of a person: an id token, which counts only if it is signed, for us, for this sign-in, and now.

Pure. Signatures are checked by joserfc. Which algorithm counts is ours to say: those with a public key, so neither
`none` nor one that takes the provider's public key for a shared secret.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tracelake import limits
from tracelake._errors import NoKeyError

Claims = dict[str, Any]
ALGORITHMS: Final[dict[str, type[RSAKey | ECKey | OKPKey]]] = {
    **{f"{kind}{bits}": RSAKey for kind in ("RS", "PS") for bits in (256, 384, 512)},
    **{f"ES{bits}": ECKey for bits in (256, 384, 512)},
    **dict.fromkeys(("EdDSA", "Ed25519"), OKPKey),
}
"""Those that count, with the kind of their keys."""


def claims_of(
    token: str, keys: Sequence[Mapping[str, Any]], issuer: str, client_id: str, nonce: str, now_s: float
) -> Claims | None:
    """Return what an id token says; None where none of the keys is that which it names, or has
    signed it: the provider may have new ones.

    Raises NoKeyError for one that does not count.
    """
    try:
        if len(token) > limits.ID_TOKEN_MAX_CHARS:
            raise ValueError("it is too long")
        header = jws.extract_compact(token.encode()).headers()
        key = _key_of(header, keys)
        if key is None:
            return None
        claims = jwt.decode(token, key, algorithms=[header["alg"]]).claims
        _check(claims, issuer, client_id, nonce, now_s)
    except BadSignatureError:
        return None
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NoKeyError(
            f"what the provider says of you does not count: {str(error)[: limits.QUOTED_MAX_CHARS]}; sign in again, "
            "and tell who keeps the lake if it stays so"
        ) from None
    return claims


def _key_of(header: Mapping[str, Any], keys: Sequence[Mapping[str, Any]]) -> RSAKey | ECKey | OKPKey | None:
    """Return the key that a token is signed with; None where it is not there. Raises ValueError."""
    algorithm, kid = header.get("alg"), header.get("kid")
    kind = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if kind is None:
        raise ValueError(
            f"it is signed by {str(algorithm)[: limits.NAME_QUOTED_MAX_CHARS]!r}, which counts for nothing"
        )
    fitting = [
        each
        for each in keys
        if each.get("kty") == kind.key_type
        and (kid is None or each.get("kid") == kid)
        and each.get("use", "sig") == "sig"
        and each.get("alg", algorithm) == algorithm
    ]
    if not fitting:
        return None
    if len(fitting) > 1:
        raise ValueError("it does not say which of the provider's keys signed it")
    if kind is RSAKey:
        modulus = int.from_bytes(base64.urlsafe_b64decode(str(fitting[0]["n"]) + "=="))
        if not limits.RSA_MIN_BITS <= modulus.bit_length() <= limits.RSA_MAX_BITS:
            raise ValueError(f"the provider's key has {modulus.bit_length()} bits")
    return kind.import_key({name: value for name, value in fitting[0].items() if name in _PUBLIC})


_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")


def _check(claims: Claims, issuer: str, client_id: str, nonce: str, now_s: float) -> None:
    jwt.JWTClaimsRegistry(
        now=int(now_s),
        leeway=limits.PROVIDER_SKEW_MAX_S,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        nonce={"essential": True, "value": nonce},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    ).validate(claims)
    if not isinstance(claims["nonce"], str):
        raise ValueError("its nonce is no text")
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if several else client_id) != client_id:
        raise ValueError("it was issued for another client (azp)")
    subject = claims["sub"]
    if len(subject) > limits.SUBJECT_MAX_CHARS or not subject.isprintable():
        raise ValueError(
            f"it calls you by more than {limits.SUBJECT_MAX_CHARS} characters, or by some that cannot be printed"
        )

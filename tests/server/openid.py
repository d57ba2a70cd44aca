"""An OpenID Connect provider in a separate process, and users who sign in with it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any, Final

import httpx

from tests import npm
from tests.server.client import Client
from tracelake.access.oidc import Admission, OpenId

SECRET: Final = "a secret of the provider: & + %"
ADMISSIONS: Final = (
    Admission("groups", "keepers", "admin", "*"),
    Admission("groups", "team-a", "annotate", "team-a"),
    Admission("email", "ada@example.com", "read", "*"),
)
DIRECTORY: Final = Path(__file__).parent / "provider"


@contextmanager
def provider(**client: Any) -> Iterator[str]:
    """Run the provider until the end of the block, with these properties of its client Tracelake; yield its
    address."""
    command = [npm.install(DIRECTORY), str(DIRECTORY / "provider.mjs"), json.dumps({"client": client})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            yield next(line for line in lines if line.startswith("http://")).strip()
        finally:
            process.kill()


def openid(issuer: str, **changed: Any) -> OpenId:
    """Return settings that fit it."""
    return OpenId(
        **{"issuer": issuer, "client_id": "tracelake", "admissions": ADMISSIONS, "client_secret": SECRET}
        | changed
    )


class Person:
    """A user with a browser, which keeps cookies of the provider and of Tracelake."""

    def __init__(self, client: Client, name: str) -> None:
        """Create a user with this name."""
        self.client = client
        self.name = name
        self.cookies: dict[str, str] = {}

    def get(self, url: str, method: str = "GET", **headers: str) -> httpx.Response:
        """Request a page of Tracelake, and keep the cookies that it sets."""
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        answer = self.client.request(method, url, headers=cookie | headers)
        for line in answer.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            if "max-age=0" in line.lower():
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return answer

    def go(self, after: str = "/") -> str:
        """Begin to sign in, sign in at the provider, and return the redirect's target."""
        return self.at_provider(self.begin(after))

    def begin(self, after: str) -> str:
        """Return the address to which Tracelake redirects the browser."""
        answer = self.get(f"/sign-in/provider?next={after}")
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def at_provider(self, url: str) -> str:
        """Fill in the forms of the provider until it redirects back."""
        with httpx.Client(trust_env=False) as browser:
            answer = browser.get(url)
            while True:
                if answer.is_redirect:
                    url = str(answer.next_request.url if answer.next_request else "")
                    if "/sign-in/callback" in url:
                        return url
                    answer = browser.get(url)
                else:
                    action = re.search(r'<form[^>]* action="([^"]+)"', answer.text)
                    assert action, answer.text
                    prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
                    assert prompt, answer.text
                    form = {"prompt": prompt[1], "login": self.name, "password": "any"}
                    answer = browser.post(str(answer.url.join(unescape(action[1]))), data=form)

    def sign_in(self, after: str = "/") -> httpx.Response:
        """Sign in completely; return the last response."""
        return self.get(self.go(after))

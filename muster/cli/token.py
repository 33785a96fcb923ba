"""`muster token`: bearer tokens, by which programs say who they are."""

import re
import time
from typing import Annotated

import typer

from muster.cli.acl_words import Wait, scope_of, wait_for_all, words_of
from muster.cli.connection import Connection
from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Output, Timeout
from muster.cli.output import Format, Result, Table, Value, rfc3339, show
from muster.v1.access_pb2 import (
    CreateTokenRequest,
    ListTokensRequest,
    RevokeTokenRequest,
    Token,
)

COLUMNS = ("TOKEN-ID", "PRINCIPAL", "CREATED", "EXPIRES", "SCOPES")
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MS = 1_000


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Bearer tokens of programs.", no_args_is_help=True)
    family.command("create")(create)
    family.command("list")(list_tokens)
    family.command("revoke")(revoke)
    app.add_typer(family, name="token")


def create(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Whose token it is.")],
    expires: Annotated[
        str,
        typer.Option("--expires", metavar="TIME", help="After 90d, 12h, 30m, 10s; never: 0."),
    ] = "90d",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="OPERATION:RESOURCE[:NAME]",
            help="It is good for this alone, as far as its principal may. May be repeated.",
        ),
    ] = None,
    wait: Wait = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Make a token. It is printed once: the cluster keeps a hash. `-o name` prints it alone."""
    lasts_s = _seconds(expires)
    request = CreateTokenRequest(
        principal=principal,
        expires_wall_ms=int((time.time() + lasts_s) * MS) if lasts_s else 0,
        scopes=[scope_of(text) for text in scope or ()],
    )
    with Connection(bootstrap, timeout) as to:
        answer = to.ask(
            lambda at, s: at.access.CreateToken(request, timeout=s, metadata=to.operator())
        )
        if wait:
            wait_for_all(to, answer.access_version)
    document: dict[str, Value] = {
        "token_id": answer.token_id,
        "principal": principal,
        "expires": _when(request.expires_wall_ms),
        "token": answer.token,
    }
    row = (answer.token_id, principal, document["expires"], answer.token)
    show(
        Result(
            schema="muster.token.create/v1",
            document=document,
            tables=[Table(("TOKEN-ID", "PRINCIPAL", "EXPIRES", "TOKEN"), [row])],
            items=[document],
            names=[answer.token],
        ),
        output,
    )


def list_tokens(
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List all tokens, without their secrets."""
    request = ListTokensRequest()
    with Connection(bootstrap, timeout) as to:
        answer = to.ask(
            lambda at, s: at.access.ListTokens(request, timeout=s, metadata=to.operator())
        )
    items = [_item(token) for token in answer.tokens]
    show(
        Result(
            schema="muster.token.list/v1",
            document={"tokens": items, "access_version": answer.access_version},
            tables=[Table(COLUMNS, [tuple(item.values()) for item in items])],
            items=items,
            names=[token.token_id for token in answer.tokens],
        ),
        output,
    )


def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="TOKEN-ID", help="As `muster token list` shows it.")
    ],
    wait: Wait = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """End a token. One that is not there is no error. Calls that wait with it end."""
    request = RevokeTokenRequest(token_id=token_id)
    with Connection(bootstrap, timeout) as to:
        answer = to.ask(
            lambda at, s: at.access.RevokeToken(request, timeout=s, metadata=to.operator())
        )
        if wait:
            wait_for_all(to, answer.access_version)
    document: dict[str, Value] = {"token_id": token_id, "access_version": answer.access_version}
    show(
        Result(
            schema="muster.token.revoke/v1",
            document=document,
            tables=[Table(("TOKEN-ID", "RESULT"), [(token_id, "revoked")])],
            items=[document],
            names=[token_id],
        ),
        output,
    )


def _seconds(text: str) -> int:
    """How long a token lasts; 0: for ever. Raises CommandError (usage)."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if text == "0":
        return 0
    if found is None or not int(found[1]):
        raise CommandError(
            f"{text!r} is no time",
            next_step="give a number with s, m, h or d, such as 90d; 0 for ever",
            exit_code=ExitCode.USAGE,
        )
    return int(found[1]) * UNITS_S[found[2]]


def _when(wall_ms: int) -> str:
    return rfc3339(wall_ms) or "never"


def _item(token: Token) -> dict[str, Value]:
    return {
        "token_id": token.token_id,
        "principal": token.principal,
        "created": _when(token.created_wall_ms),
        "expires": _when(token.expires_wall_ms),
        "scopes": " ".join(":".join(words_of(scope)).rstrip(":") for scope in token.scopes),
    }

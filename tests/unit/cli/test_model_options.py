"""Options that are made from the fields of a model: their spelling, what they read, and how they are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import BaseModel, BeforeValidator, Field
from typer.testing import CliRunner, Result

from modelyard.cli.model_options import options_from, parse_options
from modelyard.cli.options import UsageError
from modelyard.cli.router import app as router
from modelyard.objects.cli_marker import Cli
from modelyard.router.settings import RouterSettings


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    size: int = 1


class Painted(BaseModel):
    name: str = Field(description="name of the picture")
    colours: Annotated[tuple[Colour, ...], Cli("--colour")] = Field((Colour.RED,), description="colour to use")
    labels: dict[str, int] = Field(default_factory=dict, description="label")
    width: Annotated[float, BeforeValidator(lambda value: float(str(value).removesuffix("cm")))] = Field(
        1.5, gt=0, le=1e6, description="width"
    )
    copies: int | None = Field(None, ge=1, description="copies; unset: one")
    is_framed: bool = Field(True, description="add a frame")
    inner: Inner = Field(default_factory=Inner, description="what is in it")
    namespace: str = Field("default", description="namespace")


@dataclass(frozen=True, slots=True)
class Speed:
    rate: Annotated[float, Field(ge=1, description="bytes per second")] = 8.0


@dataclass(frozen=True, slots=True)
class Download:
    uri: Annotated[str, Field(description="where it is")]
    speed: Speed = field(default_factory=Speed)


def invoke(model: type[Any], *arguments: str, **how: Any) -> tuple[Result, dict[str, Any]]:
    app, received = typer.Typer(), {}

    @app.command()
    @options_from(model, **how)
    def command(given: dict[str, Any], loud: bool = False) -> None:
        """Do it."""
        received.update(given, loud=loud)

    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}), received


def test_only_what_was_typed_is_given() -> None:
    done, received = invoke(Painted, "sea", "--loud", arguments=("name",))
    assert done.exit_code == 0, done.output
    assert received == {"name": "sea", "loud": True}
    assert parse_options(Painted, {"name": "sea"}) == Painted(name="sea")


def test_values_are_read_by_their_types() -> None:
    typed = "--name sea --colour blue --colour red --labels a=1 --labels b=2 --width 3cm --copies 2 --no-is-framed"
    done, received = invoke(Painted, *typed.split(), "--inner", "file.yaml", "-n", "shop")
    assert done.exit_code == 0, done.output
    assert received.pop("inner") == Path("file.yaml")
    del received["loud"]
    painted = parse_options(Painted, received)
    assert (painted.colours, painted.labels) == ((Colour.BLUE, Colour.RED), {"a": 1, "b": 2})
    assert (painted.width, painted.copies, painted.is_framed, painted.namespace) == (3.0, 2, False, "shop")


def test_help_has_descriptions_limits_and_defaults() -> None:
    done, _ = invoke(Painted, "--help", leave_out=("inner",))
    shown = " ".join(done.output.split())
    assert "Do it." in shown
    assert "Width (above 0, at most 1000000, default 1.5)." in shown
    assert "Colour to use; repeat (default red)." in shown
    assert "Copies; unset: one (at least 1)." in shown
    assert "Add a frame (default --is-framed)." in shown
    assert "--inner" not in shown
    assert "KEY=VALUE" in shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "a", "copies": 0}, "--copies: input should be greater than or equal to 1 (found 0)"),
        ({"name": "a", "colours": ["green"]}, "--colour: "),
        ({"name": "a", "labels": {"a": "much"}}, "; write KEY=VALUE"),
        ({"name": "a", "namespace": 5}, "--namespace: "),
    ],
)
def test_a_value_that_is_refused_is_named_by_its_option(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_options(Painted, given)
    assert message in str(refused.value)


def test_a_pair_without_a_value_is_refused() -> None:
    done, _ = invoke(Painted, "--name", "a", "--labels", "a")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "--labels a: write KEY=VALUE"


def test_fields_of_a_dataclass_in_a_dataclass_are_options_too() -> None:
    done, received = invoke(Download, "--uri", "x", "--rate", "2")
    assert done.exit_code == 0, done.output
    assert received == {"uri": "x", "speed": {"rate": 2.0}, "loud": False}
    assert parse_options(Download, {"uri": "x", "speed": {"rate": 2.0}}) == Download("x", Speed(2.0))
    with pytest.raises(UsageError, match="--rate: input should be greater than or equal to 1"):
        parse_options(Download, {"uri": "x", "speed": {"rate": 0.0}})


def test_settings_of_the_router_are_its_options() -> None:
    for typed, message in (("--workers 65", "--workers: "), ("--access-log xml", "--access-log: 'xml'")):
        refused = CliRunner().invoke(router, typed.split()).exception
        assert isinstance(refused, UsageError)
        assert message in str(refused)
    settings = RouterSettings(namespaces=("a", "b"), ext_proc_port=9002)
    assert RouterSettings.model_validate_json(settings.model_dump_json()) == settings, "as workers get them"

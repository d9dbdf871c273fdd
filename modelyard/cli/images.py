"""``modelyard runtimes check-images``: do the images that manifests name exist at their registries?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from modelyard.cli import options

MISSING, UNKNOWN = 1, 3
"""Exit codes: an image does not exist; none is missing, but one could not be checked."""
CATALOGUE = Path("config/runtimes")


def check_images(
    files: options.Files = None,
    registry: Annotated[
        list[str] | None,
        typer.Option(help="[REGISTRY=]ADDRESS: ask this host[:port] instead, as for a mirror; repeat."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain HTTP; only with --registry.")] = False,
    auth_file: Annotated[
        Path | None, typer.Option(help="Credentials in the form of Docker's config.json; unset: none are sent.")
    ] = None,
    output: options.Form = options.Output.TABLE,
) -> None:
    """Check that the images in manifests exist at their registries. Nothing is pulled.

    Without -f the catalogue in config/runtimes is checked. Exit codes: 0 every image exists, 1 one does not exist,
    2 the command line or a file cannot be used, 3 one could not be checked and none is missing.
    """
    from modelyard.cli.registry import ImageState, ImageStatus, Registries, read_logins
    from modelyard.runtimes import parse_image

    addresses = dict(_address(text) for text in registry or ())
    if insecure and not addresses:
        raise options.UsageError("--insecure: sends requests in plain HTTP; name the host with --registry")
    try:
        logins = read_logins(auth_file) if auth_file is not None else {}
    except (OSError, ValueError) as error:
        raise options.UsageError(f"--auth-file {auth_file}: {error}; give a file like Docker's config.json") from error
    registries, rows = Registries(addresses, logins, plain=insecure), []
    for image, places in sorted(_images(files).items()):
        try:
            reference = parse_image(image)
        except ValueError as error:
            status = ImageStatus(ImageState.MISSING, message=str(error))
        else:
            status = registries.status(reference)
        rows.append({"image": image, **status._asdict(), "where": places})
    _print(rows, output)
    states = {row["state"] for row in rows}
    if ImageState.MISSING in states:
        raise typer.Exit(MISSING)
    if ImageState.UNKNOWN in states:
        raise typer.Exit(UNKNOWN)


def _address(text: str) -> tuple[str, str]:
    name, equals, address = text.rpartition("=")
    if not address or "/" in address or (equals and not name):
        raise options.UsageError(f"--registry {text!r}: write HOST[:PORT], or REGISTRY=HOST[:PORT], without a scheme")
    return name, address


def _images(files: list[Path] | None) -> dict[str, list[str]]:
    from modelyard.autoscaling.offline import read_manifests
    from modelyard.objects import printable
    from modelyard.runtimes import images_of

    if not files:
        files = sorted(CATALOGUE.glob("*.yaml"))
    if not files:
        raise options.UsageError(f"there is no catalogue in {CATALOGUE} - give manifests with -f")
    places: dict[str, dict[str, None]] = {}
    for manifest in read_manifests(files):
        for image in images_of(manifest.body):
            places.setdefault(printable(image), {})[f"{manifest.kind} {manifest.key.name}"] = None
    if not places:
        raise options.UsageError("these manifests name no image - give others with -f")
    return {image: list(objects) for image, objects in places.items()}


def _print(rows: list[dict[str, Any]], output: options.Output) -> None:
    if output is not options.Output.TABLE:
        options.print_document(json.dumps({"images": rows}, indent=2), output)
        return
    from rich.text import Text

    from modelyard.objects import few

    colours = {"exists": "green", "missing": "red", "unknown": "yellow"}
    table = options.grid("IMAGE", "STATE", "DIGEST", "WHERE", "WHY")
    for row in rows:
        state = Text(row["state"], colours[row["state"]])
        table.add_row(row["image"], state, row["digest"], ", ".join(few(row["where"], 3)), row["message"])
    options.console().print(table)

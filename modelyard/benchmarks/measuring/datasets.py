"""Data sets of a run: the program's options for a hub's, and fetching those of buckets and releases.

The program reads a hub's data set and files; everything else is fetched first, by the code that fetches models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelyard.benchmarks.records import DATASET_TOKEN, MeasureError, Measurement, program
from modelyard.models.download import FetchRequest, FileRules, ModelRecord, NodeStore, Progress, Report, bring_settled
from modelyard.models.sources import Credentials, open_source
from modelyard.models.storage import FetchError, parse

FILES = (".txt", ".csv", ".json")
_LINE = 1 << 16


def credentials(asked: Measurement, environ: Mapping[str, str]) -> Credentials:
    """Return the data set's credentials: a mounted Secret, or the token that its parameters have."""
    folder, token = asked.access.credentials, environ.get(DATASET_TOKEN, "")
    return Credentials(Path(folder) if folder else None, {_token_key(asked): token} if token else {})


def _token_key(asked: Measurement) -> str:
    return asked.access.parameters.get("secretKey", "token")


def token(asked: Measurement, environ: Mapping[str, str]) -> str:
    """Return the token of a hub's data set; empty without one."""
    return credentials(asked, environ).get(_token_key(asked)) or ""


def options(asked: Measurement, folder: Path, environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the program's options for its prompts or images, fetched into ``folder`` where need be.

    Prompts are a column of a hub's data set, or the one file of a folder. Images are those of a hub or of a folder of
    pictures, which the program takes from a file that describes them. Raises ``MeasureError``.
    """
    if asked.dataset is None:
        return {}
    prompt, address, parameters = asked.columns.get("prompt_column"), asked.dataset, asked.access.parameters
    if "://" in address:
        address = str(_fetched(asked, folder, environ))
    hub, images = program.of_hub(address), asked.task in program.OF_IMAGES
    if not hub and not images:
        return _file(Path(address), prompt)
    chosen = {"split": parameters.get("split", "train"), "name": parameters.get("subset") if hub else None}
    chosen |= {"revision": asked.access.revision if hub else None}
    source: dict[str, Any] = {"type": "huggingface", "path": address}
    source |= {"huggingface_kwargs": {name: value for name, value in chosen.items() if value is not None}}
    columns = {"prompt_column": prompt if images else prompt or "prompt"}
    columns |= {"image_column": asked.columns.get("image_column", "image")} if images else {}
    (folder / "dataset.json").write_text(json.dumps({"source": source, **columns}), encoding="utf-8")
    return {"--dataset-config": str(folder / "dataset.json")}


def _fetched(asked: Measurement, folder: Path, environ: Mapping[str, str]) -> Path:
    root, uri, access = folder / "dataset", asked.dataset or "", asked.access
    root.mkdir()
    target = root / "files"
    given = (access.parameters.get(name, "").split(",") for name in ("include", "exclude"))
    include, exclude = ([one.strip() for one in names if one.strip()] for names in given)
    rules = FileRules(include, exclude, all_formats=True)
    request = FetchRequest(uri, root, str(target), "dataset", rules=rules, public=access.public)
    try:
        source = open_source(
            parse(uri),
            credentials(asked, environ),
            endpoint=access.parameters.get("endpoint"),
            region=access.parameters.get("region"),
            style=access.parameters.get("addressingStyle"),
            token_key=_token_key(asked),
            public=access.public,
        )
        with NodeStore(root) as store:
            record = ModelRecord("dataset", store.relative(str(target), None), uri, rules=rules.digest)
            bring_settled(store, source, record, request, Report(), Progress(lambda _: None))
    except FetchError as error:
        reason = "DatasetUnavailable" if error.retryable else "DatasetMissing"
        raise MeasureError(reason, f"dataset {uri}: {error}", retryable=error.retryable) from None
    return target


def _file(path: Path, prompt: str | None) -> dict[str, str | None]:
    files = [path] if path.is_file() else sorted(file for file in path.glob("*") if file.suffix in FILES)
    if len(files) != 1 or files[0].suffix not in FILES:
        raise MeasureError(
            "DatasetMissing",
            f"dataset: {path} has {len(files)} files of prompts; put one there that ends in {', '.join(FILES)}",
        )
    if files[0].suffix != ".csv":
        return {"--dataset-path": str(files[0])}
    if prompt is None:
        with files[0].open(encoding="utf-8", errors="replace") as opened:
            columns = [name.strip().strip('"') for name in opened.readline(_LINE).split(",")]
        prompt = "prompt" if "prompt" in columns else columns[0]
    return {"--dataset-path": str(files[0]), "--dataset-prompt-column": prompt}

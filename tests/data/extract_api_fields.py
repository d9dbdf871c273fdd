"""Makes ``api-fields.json`` from the published field references: every field of every type of every kind.

``python tests/data/extract_api_fields.py FOLDER > tests/data/api-fields.json``, where FOLDER holds the references: the
Markdown tables that crd-ref-docs writes and the HTML tables that genref writes. Only facts are kept (names, types,
defaults, validations, which are required), no prose.
"""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

Type = dict[str, Any]

_ROOT_FIELDS = ("apiVersion", "kind", "metadata")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]*)\)")
_HTML_ROW = re.compile(
    r"<tr><td><code>(\w+)</code>( <B>\[Required\]</B>)?<br/>\s*(.*?)\s*</td>\s*<td>(.*?)</td>\s*</tr>", re.S
)
_VALIDATION = re.compile(
    r"(Maximum|Minimum|MaxLength|MinLength|MaxItems|MinItems|MinProperties|Pattern|Enum|Required|Optional): (.*)"
)


def markdown(text: str) -> dict[str, Any]:
    """A reference written by crd-ref-docs."""
    group = re.search(r"^## (\S+/v\w+)$", text, re.M)
    if group is None:
        raise ValueError("no group in the document")
    kinds = re.findall(r"^- \[(\w+)\]", text.split("### Resource Types")[1].split("####")[0], re.M)
    types: dict[str, Type] = {}
    for section in re.split(r"^#### ", text, flags=re.M)[1:]:
        name = section.split("\n", 1)[0].strip()
        fields = []
        for row in re.findall(r"^\| `(.*) \|$", section, re.M):
            if "` _" not in row:
                continue
            cells = re.split(r"(?<!\\)\|", "`" + row)
            head, default, validations = cells[0], cells[-2].strip(), cells[-1]
            field = _field(head)
            if field["name"] in _ROOT_FIELDS and any(name in (kind, f"{kind}List") for kind in kinds):
                continue
            fields.append({**field, **_facts(default, validations)})
        underlying = re.search(r"_Underlying type:_ _(\w+)_", section)
        enum = re.search(r"^- Enum: \[(.*)\]", section, re.M)
        types[name] = {"fields": fields}
        if underlying:
            types[name]["underlying"] = underlying[1]
        if enum:
            types[name]["enum"] = enum[1].split()
    return {"group": group[1], "kinds": [kind for kind in kinds if not kind.endswith("List")], "types": types}


def _field(head: str) -> dict[str, Any]:
    match = re.match(r"\s*`(\w+)` _(.*)_\s*$", head)
    if match is None:
        raise ValueError(f"cannot read the field {head!r}")
    written = match[2].replace("\\", "")
    plain = _LINK.sub(lambda link: link[1], written)
    mapped = re.match(r"object \(keys:string, values:(.*)\)$", plain)
    array = plain.removesuffix(" array")
    if mapped:
        return {"name": match[1], "type": mapped[1], "map": True}
    if array != plain:
        return {"name": match[1], "type": array, "list": True}
    return {"name": match[1], "type": plain}


def _facts(default: str, validations: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"default": default} if default else {}
    rules: dict[str, Any] = {}
    for part in re.split(r"<br />", validations):
        match = _VALIDATION.match(part.strip())
        if match is None:
            continue
        name, value = match[1], match[2].strip().replace("\\|", "|")
        if name == "Required":
            facts["required"] = True
        elif name == "Pattern":
            rules[name] = value.strip("`")
        elif name == "Enum":
            rules[name] = value.strip("[]").split()
        elif name != "Optional":
            rules[name] = int(float(value))
    if rules:
        facts["validations"] = rules
    return facts


def genref(text: str) -> dict[str, Any]:
    """A reference written by genref."""
    group = re.search(r"^package: (\S+)$", text, re.M)
    if group is None:
        raise ValueError("no group in the document")
    kinds = re.findall(r"^- \[(\w+)\]", text.split("## Resource Types")[1].split("\n## ")[0], re.M)
    types: dict[str, Type] = {}
    for section in re.split(r"^## `", text, flags=re.M)[1:]:
        name = section.split("`", 1)[0]
        rows = _HTML_ROW.findall(section)
        fields: list[dict[str, Any]] = []
        for field, required, written, description in rows:
            if field in _ROOT_FIELDS and name in kinds:
                continue
            fields.append(_html_field(field, written, bool(required), description))
        types[name] = {"fields": fields}
        alias = re.search(r"^\(Alias of `(\w+)`\)", section, re.M)
        if alias:
            types[name]["underlying"] = alias[1]
    return {"group": group[1], "kinds": kinds, "types": types}


def _html_field(name: str, written: str, required: bool, description: str) -> dict[str, Any]:
    text = html.unescape(re.sub(r"<[^>]+>", "", written)).strip()
    field: dict[str, Any] = {"name": name}
    mapped = re.match(r"map\[\w+\](.*)$", text)
    if mapped:
        field["map"], text = True, mapped[1]
    elif text.startswith("[]"):
        field["list"], text = True, text[2:]
    field["type"] = text.rsplit(".", 1)[-1] if "/" in text else text
    if required:
        field["required"] = True
    if "are embedded into this type" in description:
        field["embedded"] = True
    return field


def main() -> None:
    """Read the folder given on the command line, write JSON to standard output."""
    documents = []
    for path in sorted(Path(sys.argv[1]).glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        documents.append(genref(text) if "auto_generated: true" in text else markdown(text))
    json.dump(documents, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

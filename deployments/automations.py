"""Creates or updates the automations of ``automations.yaml``, by name."""

from __future__ import annotations

from pathlib import Path

import yaml
from prefect.client.orchestration import PrefectClient
from prefect.events.schemas.automations import AutomationCore
from pydantic import TypeAdapter

FILE = Path(__file__).with_name("automations.yaml")


def load(path: Path = FILE) -> list[AutomationCore]:
    """The automations of the file. Raises ``pydantic.ValidationError`` naming the field that is wrong."""
    return TypeAdapter(list[AutomationCore]).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))


async def apply(client: PrefectClient, path: Path = FILE) -> list[str]:
    """Make the server's automations of these names equal to the file's; a sentence for each on what was done.

    One that somebody disabled stays disabled. A duplicate of the same name is removed.
    """
    done = []
    for wanted in load(path):
        existing = await client.read_automations_by_name(wanted.name)
        if not existing:
            await client.create_automation(wanted)
            done.append(f"{wanted.name}: created")
            continue
        first, *duplicates = existing
        await client.update_automation(first.id, wanted.model_copy(update={"enabled": first.enabled}))
        for duplicate in duplicates:
            await client.delete_automation(duplicate.id)
        done.append(f"{wanted.name}: updated" + (f", {len(duplicates)} duplicates removed" if duplicates else ""))
    return done

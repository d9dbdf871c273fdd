"""Import-linter contract: code outside a package imports only the package, never a module inside it."""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PublicSurfaceContract(Contract):
    """Every package is used through the names that its ``__init__`` binds.

    A module may be imported by the modules of its own package and of the packages inside it. ``open_packages`` lists
    packages whose modules are public by themselves.
    """

    open_packages = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Collect the imports of modules by code outside their package."""
        packages = {module.rpartition(".")[0] for module in graph.modules} - {""}
        broken: list[tuple[str, int, str]] = []
        for imported in graph.modules - packages:
            package = imported.rpartition(".")[0]
            if not package or package in self.open_packages:
                continue
            importers = graph.find_modules_that_directly_import(imported)
            # A name that a package offers may be called like one of its modules; the statement decides.
            offered = package in importers
            for importer in importers:
                if importer == package or importer.startswith(f"{package}."):
                    continue
                for detail in graph.get_import_details(importer=importer, imported=imported):
                    text = detail["line_contents"]
                    if not (offered and text.startswith(f"from {package} import ")):
                        broken.append((importer, detail["line_number"], text))
        return ContractCheck(kept=not broken, metadata={"broken": sorted(broken)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """List the imports, with their remedy."""
        broken: list[Any] = check.metadata["broken"]
        for importer, line, text in broken:
            output.print_error(f"{importer}:{line}: {text}")
        output.print_error("Import the package instead, and add the name to its __init__ where it is missing there.")

"""Contracts for import-linter that need no list which a new module could be missing from."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


def on_circles(imported: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Of modules and what each imports, the imports of circles, and of ways between two circles.

    Modules that lead nowhere or come from nowhere are dropped until nothing else is left.
    """
    left = set(imported)
    while outside := {one for one in left if not imported[one] & left} or {
        one for one in left if not any(one in imported[other] for other in left)
    }:
        left -= outside
    return sorted(f"{one} -> {other}" for one in left for other in imported[one] & left)


class AcyclicContract(Contract):
    """No module of ours imports itself by way of others, imports for types and in functions too."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Every import between two modules of a circle is told."""
        ours = {module for module in graph.modules if not graph.is_module_squashed(module)}
        rows = on_circles({one: graph.find_modules_directly_imported_by(one) for one in ours})
        return ContractCheck(kept=not rows, metadata={"strays": rows})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Each import between the modules of a circle."""
        for stray in check.metadata["strays"]:
            output.print_error(stray)


class OnlyContract(Contract):
    """`source` imports itself and `allowed_modules`, nothing else; but for `exceptions`.

    Descendants are meant, too. The forbidden contract names what may not be imported; this one
    needs no list of the whole standard library. External modules are seen by their top name
    (`collections`).
    """

    source = fields.StringField()
    allowed_modules = fields.ListField(subfield=fields.StringField())
    exceptions = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Every direct import is looked at; what is on a list for nothing is a mistake."""
        imports = [
            (module, imported)
            for module in (self.source, *graph.find_descendants(self.source))
            for imported in graph.find_modules_directly_imported_by(module)
            if not _is_within(imported, [self.source])
        ]
        beyond = [(a, b) for a, b in imports if not _is_within(b, self.allowed_modules)]
        strays = [f"{a} -> {b}" for a, b in beyond if not _is_within(a, self.exceptions)]
        strays += [
            f"{self.source} imports no {allowed}"
            for allowed in self.allowed_modules
            if not any(_is_within(imported, [allowed]) for _, imported in imports)
        ]
        strays += [
            f"{exception} is no exception"
            for exception in self.exceptions
            if not any(_is_within(module, [exception]) for module, _ in beyond)
        ]
        return ContractCheck(kept=not strays, metadata={"strays": sorted(strays)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line per import that is not on the list, and per name on it that is not imported."""
        for stray in check.metadata["strays"]:
            output.print_error(stray)


class WithoutContract(Contract):
    """Nothing of `package` but `exceptions` and their descendants needs `module` by any way."""

    package = fields.StringField()
    module = fields.StringField()
    exceptions = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Every module is looked at; an exception that does not need it is a mistake."""
        needing = {
            module: chain
            for module in graph.find_descendants(self.package)
            if (chain := graph.find_shortest_chain(importer=module, imported=self.module))
        }
        strays = [
            " -> ".join(chain)
            for module, chain in needing.items()
            if not _is_within(module, self.exceptions)
        ]
        strays += [
            f"{exception} needs no {self.module}"
            for exception in self.exceptions
            if not any(_is_within(module, [exception]) for module in needing)
        ]
        return ContractCheck(kept=not strays, metadata={"strays": sorted(strays)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line per module that is no exception, with its way."""
        for stray in check.metadata["strays"]:
            output.print_error(stray)


class OwnedContract(Contract):
    """Nobody but `owners` and their descendants imports `modules`.

    Every package of the tree is looked at, also one that comes later.
    """

    modules = fields.ListField(subfield=fields.StringField())
    owners = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Every import of the modules is looked at; a module that nobody imports is a mistake."""
        strays = []
        for module in self.modules:
            importers = (
                graph.find_modules_that_directly_import(module) if module in graph.modules else ()
            )
            strays += [
                f"{one} -> {module}" for one in importers if not _is_within(one, self.owners)
            ]
            if not any(_is_within(one, self.owners) for one in importers):
                strays.append(f"no owner imports {module}")
        return ContractCheck(kept=not strays, metadata={"strays": sorted(strays)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line per import that is not the owners'."""
        for stray in check.metadata["strays"]:
            output.print_error(stray)


class PartContract(Contract):
    """Of `package`, each of `sources` and its descendants import `part` and nothing else."""

    sources = fields.ListField(fields.StringField())
    package = fields.StringField()
    part = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Every direct import of the package is looked at; none at all is a mistake."""
        strays = []
        for source in self.sources:
            found = [
                (module, imported)
                for module in {source, *graph.find_descendants(source)}
                for imported in graph.find_modules_directly_imported_by(module)
                if _is_within(imported, [self.package])
            ]
            strays += [f"{a} -> {b}" for a, b in found if not _is_within(b, [self.part])]
            if not found:
                strays.append(f"{source} imports nothing of {self.package}")
        return ContractCheck(kept=not strays, metadata={"strays": sorted(strays)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line per import of another part."""
        for stray in check.metadata["strays"]:
            output.print_error(stray)


def _is_within(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)

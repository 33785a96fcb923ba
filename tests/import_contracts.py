"""A contract for import-linter: a package that imports a listed few modules and nothing else."""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class OnlyContract(Contract):
    """`source` and its descendants import themselves and `allowed_modules`, nothing else.

    The forbidden contract names what may not be imported; this one needs no list of the whole
    standard library. External modules are seen by their top name (`collections`).
    """

    source = fields.StringField()
    allowed_modules = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Every direct import of every module of the package is looked at."""
        inside = {self.source, *graph.find_descendants(self.source)}
        allowed = inside | {*self.allowed_modules}
        strays = sorted(
            f"{module} -> {imported}"
            for module in inside
            for imported in graph.find_modules_directly_imported_by(module)
            if imported not in allowed
        )
        return ContractCheck(
            kept=not strays and len(inside) > 1, metadata={"strays": strays or ["no such package"]}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line per import that is not on the list."""
        for stray in check.metadata["strays"]:
            output.print_error(stray)

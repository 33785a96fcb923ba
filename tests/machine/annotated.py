"""What an expression of the machine is by its annotations, which mypy checks: a number or text.

A small part of what mypy knows: names, fields and functions that are annotated, what is computed of
them, and what is assigned from them in the same function.
"""

import ast
from collections.abc import Iterable, Iterator

NUMBER, TEXT = "int", "str"
_PLAIN = {NUMBER, TEXT}
_OF_BUILTINS = {"len": NUMBER, "int": NUMBER, "ord": NUMBER, "quoted": TEXT, "str": TEXT}

Fields = dict[str, set[str]]


def fields_of(trees: Iterable[ast.AST]) -> Fields:
    """How each field and property is annotated, over all classes that have one of this name."""
    found: Fields = {}
    for tree in trees:
        for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for node in owner.body:
                match node:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                        found.setdefault(name, set()).add(ast.unparse(annotation))
                    case ast.FunctionDef(name=name, returns=ast.expr() as returns):
                        is_property = any(
                            isinstance(one, ast.Name) and one.id == "property"
                            for one in node.decorator_list
                        )
                        text = ast.unparse(returns) if is_property else "a method"
                        found.setdefault(name, set()).add(text)
                    case _:
                        pass
    return found


class Annotated:
    """What the names of one function, or of the module outside of all, stand for."""

    def __init__(self, tree: ast.Module, scope: ast.AST, fields: Fields) -> None:
        self._fields = fields
        self._returns = {
            node.name: ast.unparse(node.returns)
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.returns is not None
        }
        self._names: dict[str, list[ast.expr | str | None]] = {}
        self._bound: set[ast.AST] = set()  # targets of which is known what they are bound to
        for node in _inside(scope):
            self._note(node)
        self._asked: set[str] = set()

    def _note(self, node: ast.AST) -> None:  # noqa: C901 - one arm per form
        match node:
            case ast.arguments(vararg=vararg, kwarg=kwarg):
                for one in (vararg, kwarg):
                    if one is not None:
                        self._bind(one.arg, None)  # annotated with what it holds
            case ast.arg(arg=name, annotation=annotation):
                self._bind(name, annotation and ast.unparse(annotation))
            case ast.AnnAssign(target=ast.Name(id=name) as target, annotation=annotation):
                self._bind(name, ast.unparse(annotation), target)
            case (
                ast.Assign(targets=[ast.Name(id=name) as target], value=value)
                | ast.NamedExpr(target=ast.Name(id=name) as target, value=value)
                | ast.AugAssign(target=ast.Name(id=name) as target, value=value)
            ):
                self._bind(name, value, target)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, value in zip(names, values, strict=False):
                    self._bind(ast.unparse(target), value, target)
            case ast.Name(id=name, ctx=ast.Store()) if node not in self._bound:
                self._bind(name, None)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                self._bind(name, None)
            case _:
                pass

    def _bind(self, name: str, to: ast.expr | str | None, target: ast.AST | None = None) -> None:
        self._names.setdefault(name, []).append(to)
        if target is not None:
            self._bound.add(target)

    def kind(self, node: ast.expr) -> str:  # noqa: C901, PLR0911 - one arm per form
        """NUMBER or TEXT; "" where the annotations do not say that it is one of them."""
        match node:
            case ast.Constant(value=int()):
                return NUMBER
            case ast.Constant(value=str()) | ast.JoinedStr():
                return TEXT
            case ast.Name(id=name):
                return self._of_name(name)
            case ast.Attribute(attr=name):
                return _one(self._fields.get(name, set()))
            case ast.Call(func=ast.Attribute(attr="hex"), args=[]):
                return TEXT
            case ast.Call(func=ast.Name(id="sum"), args=[ast.GeneratorExp(elt=one)]):
                return _one({self.kind(one), NUMBER})
            case ast.Call(func=ast.Name(id=name)):
                return _one({_OF_BUILTINS.get(name) or self._returns.get(name, "")})
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
                return _one({self.kind(left), self.kind(right)})
            case ast.BoolOp(values=values):
                return _one({self.kind(value) for value in values})
            case ast.IfExp(body=body, orelse=orelse):
                return _one({self.kind(body), self.kind(orelse)})
            case ast.Subscript(value=value, slice=ast.Slice()) if self.kind(value) == TEXT:
                return TEXT
            case _:
                return ""

    def _of_name(self, name: str) -> str:
        bound = self._names.get(name)
        if not bound or name in self._asked:
            return ""
        self._asked.add(name)  # `x = x + 1` says nothing of x
        found = {to if isinstance(to, str) else "" if to is None else self.kind(to) for to in bound}
        self._asked.discard(name)
        return _one(found)


def _one(kinds: set[str]) -> str:
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= _PLAIN else ""


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """What belongs to a scope, without the functions within it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        yield node
        yield from _inside(node)


def scopes(tree: ast.Module) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Each function, and the module with its classes, and the nodes that belong to it."""
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield scope, list(_inside(scope))

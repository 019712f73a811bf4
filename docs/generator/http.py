"""The HTTP paths of Shiplift's own servers, from the calls that add them."""

import ast
from collections.abc import Iterator

from docs.generator.markdown import table
from docs.generator.sources import called, keyword, text, trees

_SERVERS = {
    "pipelines/triggers/receiver.py": "receiver",
    "runtime/serving/openai/app.py": "`shiplift openai`",
}
_DECORATORS = ("get", "post", "put", "delete")
_SENDERS = {
    "mlflow": "MLflow's webhook",
    "github": "GitHub's webhook for pushes",
    "gitlab": "GitLab's webhook for pushes",
}


def endpoints() -> str:
    """A table of the paths of servers that declare them."""
    return table(["Server", "Method", "Path", "Meaning"], every_endpoint())


def every_endpoint() -> Iterator[list[str]]:
    """Server, method, path and meaning of each."""
    for path, tree in trees("FastAPI"):
        if path in _SERVERS:
            yield from ([_SERVERS[path], *row] for row in _of(tree))


def _of(tree: ast.Module) -> Iterator[list[str]]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) == "add_api_route" and text(node.args[0]):
            handler = functions.get(getattr(node.args[1], "attr", ""))
            methods = [text(each) for each in getattr(keyword(node, "methods"), "elts", ())] or ["GET"]
            yield [", ".join(methods), f"`{text(node.args[0])}`", _first_line(handler)]
        if isinstance(node, ast.Call) and called(node) == "add_route":
            sender = text(node.args[0])
            yield ["POST", f"`/webhooks/{sender}`", _SENDERS[sender]]
    for handler in functions.values():
        for call in (each for each in handler.decorator_list if isinstance(each, ast.Call)):
            if called(call) in _DECORATORS and text(call.args[0]):
                yield [called(call).upper(), f"`{text(call.args[0])}`", _first_line(handler)]


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> str:
    documented = ast.get_docstring(function) if function else None
    return (documented or "").partition("\n")[0]

"""The custom resources, from the definitions that an installation creates."""

from collections.abc import Iterator

from docs.generator.markdown import Schema, kind, table
from shiplift.pipelines.installation import manifests
from shiplift.pipelines.installation.values import Values


def definitions() -> str:
    """A section per kind, with every field of its spec and status."""
    return "\n".join(_definition(found) for found in every_definition())


def every_definition() -> list[Schema]:
    """The CustomResourceDefinitions."""
    return list(manifests.part_of(Values(), "resources"))


def paths(found: Schema) -> Iterator[tuple[str, Schema]]:
    """Each field's path and schema, without the package's, which only the release writes."""
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        if part in schema["properties"]:
            yield from _below(part, schema["properties"][part])


def _below(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    inner = schema.get("items", schema)
    for name, field in inner.get("properties", {}).items():
        yield from _below(f"{path}{'[]' if 'items' in schema else ''}.{name}", field)


def _definition(found: Schema) -> str:
    names, version = found["spec"]["names"], found["spec"]["versions"][0]
    text = version["schema"]["openAPIV3Schema"].get("description", "")
    rows = [[f"`{path}`", kind(schema, {}), schema.get("description", "")] for path, schema in paths(found)]
    api = f"`{found['spec']['group']}/{version['name']}`, short names {', '.join(names.get('shortNames', []))}"
    return f"## {names['kind']}\n\n{text}\n\n{api}.\n\n{table(['Field', 'Takes', 'Meaning'], rows)}"

"""The description of the server, as OpenAPI 3.1."""

from typing import Any

from gpaco import __version__
from gpaco.api.serving.answers import Model
from gpaco.api.serving.uploads import Limits
from gpaco.tasks.classification.rows import ImageClassifier

_TEXT, _NUMBER, _WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_MAYBE = {"type": ["string", "null"]}


def describe(model: Model, limits: Limits) -> dict[str, Any]:
    """Return what the server answers, with the classes of its model."""
    classifies = isinstance(model, ImageClassifier)
    classes = {"type": "string", "enum": list(model.classes)}
    rarity = {"group": _MAYBE, "train": {"type": ["integer", "null"]}}
    if classifies:
        best = {"class": classes, "probability": _NUMBER} | rarity
        scores = {"type": "array", "items": _NUMBER, "description": "Logarithms of all probabilities, if requested."}
        answer = {"image": _TEXT, **best, "top": _array(_object(best)), "scores": scores}
        asked = [
            _query("top", "Number of classes to return.", {"type": "integer", "minimum": 1, "default": 5}),
            _query("prior", "Expected class distribution.", {"type": "string", "enum": ["uniform", "train"]}),
            _query("scores", "1 to return the logarithms of all probabilities.", {"type": "string", "enum": ["1"]}),
        ]
    else:
        found = {"class": classes, "share": _NUMBER, "color": _TEXT} | rarity
        answer = {"image": _TEXT, "probability": _NUMBER, "width": _WHOLE, "height": _WHOLE}
        mask = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}
        answer |= {"classes": _array(_object(found)), "mask": mask}
        asked = []
    many = f"At most {limits.images} images, {limits.upload / 2**20:g} MB in all, {limits.pixels:,} pixels each."
    body = _object({"images": _array({"type": "string", "format": "binary"})})
    refused = {
        "400": "No image, or a wrong parameter.",
        "408": "The upload was too slow.",
        "413": "Too many images or bytes.",
        "415": "Not multipart/form-data.",
        "422": "A file is not an image, is damaged, or has too many pixels.",
        "429": "The server is busy; Retry-After says when to try again.",
    }
    error = {"content": _json({"$ref": "#/components/schemas/Error"})}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"gpaco: {model.name}", "version": __version__},
        "paths": {
            "/predict": {
                "post": {
                    "summary": "Classify images" if classifies else "Segment images",
                    "description": many,
                    "parameters": asked,
                    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": body}}},
                    "responses": {"200": {"description": "An answer for each image.", "content": _json(_ANSWERS)}}
                    | {status: {"description": text} | error for status, text in refused.items()},
                }
            },
            "/health": {
                "get": {
                    "summary": "Health check",
                    "responses": {"200": {"description": "The server works.", "content": _json({"type": "object"})}},
                }
            },
        },
        "components": {
            "schemas": {
                "Answers": _object({"model": _TEXT, "images": _array({"$ref": "#/components/schemas/Answer"})}),
                "Answer": _object(answer, optional="scores"),
                "Error": _object({"error": _TEXT, "remedy": _TEXT}),
            }
        },
    }


_ANSWERS = {"$ref": "#/components/schemas/Answers"}


def _object(properties: dict[str, Any], optional: str = "") -> dict[str, Any]:
    needed = [name for name in properties if name != optional]
    return {"type": "object", "properties": properties, "required": needed}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _query(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "required": False, "schema": schema}

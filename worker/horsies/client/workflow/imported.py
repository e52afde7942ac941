"""The workflow definitions of this process, by their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horsies.errors import ErrorCode, WorkflowValidationError

if TYPE_CHECKING:
    from horsies.client.workflow.definition import WorkflowDefinition


class KnownDefinitions:
    """Every definition that this process has imported; apps come and go, a key means one class."""

    def __init__(self) -> None:
        self._by_key: dict[str, type[WorkflowDefinition[Any]]] = {}
        self._without_key: dict[str, type[WorkflowDefinition[Any]]] = {}

    def add(self, definition: type[WorkflowDefinition[Any]]) -> None:
        """Remember it; the same place in the source, imported again, takes the place of its forerunner."""
        key = getattr(definition, "definition_key", None)
        if not key:
            self._without_key[str(definition.__location__)] = definition
            return
        known = self._by_key.get(key)
        if known is not None and known.__location__ != definition.__location__:
            raise WorkflowValidationError(
                f"definition_key {key!r} is taken",
                code=ErrorCode.WORKFLOW_DUPLICATE_DEFINITION_KEY,
                notes=[f"first defined at {known.__location__}"],
                hint="give each workflow definition a key of its own",
                location=definition.__location__,
            )
        self._by_key[key] = definition

    def find(self, key: str) -> type[WorkflowDefinition[Any]] | None:
        return self._by_key.get(key)

    def all(self) -> list[type[WorkflowDefinition[Any]]]:
        return list(self._by_key.values())

    def without_key(self) -> list[type[WorkflowDefinition[Any]]]:
        """Those that were given none, and have something to run; a mere base for others has not."""
        return [each for each in self._without_key.values() if each.get_workflow_nodes() or each.is_parametrised()]


DEFINITIONS = KnownDefinitions()

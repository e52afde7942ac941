"""`horsies metrics`: an endpoint for Prometheus."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from typing import Annotated

import typer

from horsies.errors import ConfigurationError, ErrorCode, ExitCode
from horsies.model.settings import AppConfig
from horsies_ops.cli.options import GlobalOptions, group, with_global_options
from horsies_ops.ops import open_ops

app = group("metrics")


@app.command()
@with_global_options
def metrics(
    options: GlobalOptions,
    *,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes a free one.")] = 9464,
) -> int:
    """Answer Prometheus until SIGTERM or SIGINT."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigurationError(
            "horsies metrics needs the package prometheus-client",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="pip install prometheus-client, or horsies-ops[metrics]",
        )
    asyncio.run(_serve(options, options.load_settings().app, host, port))
    return ExitCode.DONE


async def _serve(options: GlobalOptions, settings: AppConfig, host: str, port: int) -> None:
    from horsies_ops.metrics import Exporter, serve_metrics

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_ops(settings, read_only=True, via="cli") as ops:
        exporter = Exporter(ops)
        await exporter.collect()  # from here on it counts; a database that is not there is an error now, not later
        with serve_metrics(exporter, host=host, port=port) as taken:
            options.print_message(f"metrics at http://{host}:{taken}/metrics")
            await stop.wait()

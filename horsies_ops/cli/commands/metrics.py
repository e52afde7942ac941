"""`horsies metrics`: serve Prometheus metrics."""

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

metrics_app = group("metrics")


@metrics_app.command()
@with_global_options
def metrics(
    options: GlobalOptions,
    *,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port to listen on; 0 = a free one.")
    ] = 9464,
) -> int:
    """Serve Prometheus metrics.

    Runs until SIGTERM or SIGINT.

    Example: horsies metrics --port 9464
    """
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

    # A signal then ends the blocks below normally, without a KeyboardInterrupt inside them.
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_ops(settings, read_only=True, via="cli") as ops:
        exporter = Exporter(ops)
        await exporter.collect()  # counters start here, and an unreachable database fails now instead of at a scrape
        with serve_metrics(exporter, host=host, port=port) as actual_port:
            options.print_message(f"metrics at http://{host}:{actual_port}/metrics")
            await stop.wait()

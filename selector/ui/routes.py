"""The web application: a page a language, pictures and the zip at addresses of their own, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from estimators.errors import AdvisorError
from selector.ui import files, pictures
from selector.ui.checking import MAX_BYTES
from selector.ui.link import values_of
from selector.ui.page import asset, page
from selector.ui.texts import LANGUAGES

if TYPE_CHECKING:
    from fastapi import FastAPI

# Nothing is loaded from elsewhere and nothing is sent elsewhere; Gradio's own script needs eval and inline code.
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; font-src 'self' data:; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; connect-src 'self'; frame-ancestors 'self'; base-uri 'self'"
)
LOOPBACK = ("localhost", "127.0.0.1")


def application(local: bool) -> FastAPI:
    """``local``: for this machine only. Then other host names are refused, as a page elsewhere might use to get in."""
    import gradio
    from fastapi import FastAPI, Request
    from fastapi.responses import RedirectResponse, Response
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = FastAPI(title="dist-advisor", docs_url=None, redoc_url=None, openapi_url=None)
    if local:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK))

    async def guarded(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    app.middleware("http")(guarded)

    def picture(name: str, request: Any) -> Any:
        asked = dict(request.query_params)
        narrow, language = asked.pop("narrow", "") == "yes", asked.pop("language", "")
        try:
            drawn = pictures.svg(name, values_of(asked)[0], local, narrow, language)
        except AdvisorError as reason:
            drawn = pictures.apology(reason, language)
        return Response(drawn, media_type="image/svg+xml")

    def archive(request: Any) -> Any:
        try:
            made = files.zipped(values_of(dict(request.query_params))[0], local)
        except AdvisorError as reason:
            return Response(f"{reason}\n", status_code=422, media_type="text/plain; charset=utf-8")
        named = {"Content-Disposition": 'attachment; filename="dist-advisor.zip"'}
        return Response(made, media_type="application/zip", headers=named)

    def start(request: Any) -> Any:
        asked = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/{_preferred(request.headers.get('accept-language', ''))}/{asked}")

    picture.__annotations__.update(name=str, request=Request)
    for handler in (archive, start):
        handler.__annotations__["request"] = Request
    app.get("/plot/{name}.svg")(picture)
    app.get(files.ADDRESS)(archive)
    app.get("/")(start)
    app.get("/manifest.json")(lambda: {"name": "dist-advisor", "start_url": "/", "display": "browser"})
    app.get("/favicon.ico")(lambda: Response(status_code=204))
    for language in LANGUAGES:
        gradio.mount_gradio_app(
            app, page(language, local), f"/{language}", max_file_size=MAX_BYTES, ssr_mode=False, show_error=False,
            footer_links=[], theme=_theme(), css=asset("style.css"), head=_head(),
            enable_monitoring=False, **_without_history(),
        )  # fmt: skip
    return app


def _head() -> str:
    """No picture for the tab: the browser would ask for it again whenever the address follows the question."""
    return f'<link rel="icon" href="data:,"><script>{asset("page.js")}</script>'


def _without_history() -> dict[str, bool]:
    """Gradio's record of runs in the browser, off: it writes every answer to disk, and nobody asked for it to be kept."""
    import inspect

    import gradio

    return {"run_history": False} if "run_history" in inspect.signature(gradio.mount_gradio_app).parameters else {}


def _theme() -> Any:
    """The system's own fonts: Gradio's default would fetch one."""
    import gradio

    sans = ["system-ui", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "sans-serif"]
    mono = ["ui-monospace", "DejaVu Sans Mono", "monospace"]
    return gradio.themes.Base(primary_hue="blue", font=sans, font_mono=mono)


def _preferred(accepted: str) -> str:
    """The language of a first visit: Chinese where the browser asks for it before English."""
    for part in accepted.split(","):
        name = part.strip().split("-")[0].split(";")[0].lower()
        if name in LANGUAGES:
            return name
    return "en"

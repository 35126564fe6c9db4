"""``dist-advisor ui``: the same answers in a web page on localhost, in English and Chinese (extra ``ui``: Gradio).

    fields.py             the question as a form: one table; texts, choices and what they mean as keywords
    link.py               the question as a query string, and back
    texts.py texts.json   the page's own words in both languages; those of answers stand in ``selector.chinese``
    questions.py          a filled form -> model, cluster, keywords; what a page may read and what not
    answer.py explain.py fitting.py checking.py files.py pictures.py     one panel each: strings in, HTML out
    html.py               escaping, tables, bars, badges
    page.py style.css page.js     the panels put together with Gradio
    serve.py routes.py    the server: one page a language, pictures and the zip as addresses of their own

Every handler is a function of what the form holds and nothing else, so users cannot see each other's answers. Gradio is
imported by ``page`` and ``serve`` when the server starts, and by nothing before.
"""

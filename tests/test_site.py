"""The rendered book: sidebar, links, figures, mathematics, contrast, and both explorers driven in a browser. `make test` builds it first where a browser is found."""
import html.parser, http.server, importlib.util, json, os, re, shutil, threading
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DOCS, SHOTS = ROOT/"_docs", ROOT/"_shots"
_spec = importlib.util.spec_from_file_location("site_tool", ROOT/"tools/site.py")   # `import site` is the standard library's
site_tool = importlib.util.module_from_spec(_spec); _spec.loader.exec_module(site_tool)

NOTEBOOKS = sorted(p.name for p in ROOT.glob("nbs/*.ipynb"))
MUST = bool(os.environ.get("RESISPEC_SITE"))        # set by the Makefile where it has just built the site; then a missing page is an error
PAGES, API = (sorted(DOCS.glob(x)) if MUST else [] for x in ("*.html", "api/*.html"))
CHROMIUM = shutil.which(os.environ.get("CHROMIUM", "")) or next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
SECONDS = 1000*float(os.environ.get("RESISPEC_PATIENCE", 60))

needs_site = pytest.mark.skipif(not MUST, reason="no pages to test: `make test` builds them where it finds a browser (Debian: apt-get install chromium), `make test-site` always")
each_page = pytest.mark.parametrize("page", PAGES or [None], ids=lambda p: p.stem if p else "none")
every_page = pytest.mark.parametrize("page", PAGES + API or [None], ids=lambda p: p.relative_to(DOCS).with_suffix("").as_posix() if p else "none")


# ---- without a site

def test_every_notebook_is_in_the_sidebar():
    config = yaml.safe_load((ROOT/"_quarto.yml").read_text())
    listed = site_tool.pages_of(site_tool.sidebar(config, NOTEBOOKS))
    assert sorted(listed) == NOTEBOOKS


def test_a_lost_notebook_stops_the_site():
    config = {"website": {"sidebar": {"contents": ["index.ipynb", {"section": "A", "contents": ["0*.ipynb"]}]}}}
    assert site_tool.pages_of(site_tool.sidebar(config, ["index.ipynb", "01_b.ipynb", "00_a.ipynb"])) == ["index.ipynb", "00_a.ipynb", "01_b.ipynb"]
    with pytest.raises(SystemExit, match="not in the sidebar.*99_lost"): site_tool.sidebar(config, ["index.ipynb", "00_a.ipynb", "99_lost.ipynb"])
    with pytest.raises(SystemExit, match="no notebook is called so"): site_tool.sidebar(config, ["index.ipynb"])
    config["website"]["sidebar"]["contents"].append("00_a.ipynb")
    with pytest.raises(SystemExit, match="more than once"): site_tool.sidebar(config, ["index.ipynb", "00_a.ipynb"])


def contrast(a, b):
    light = lambda c: sum(w*(x/12.92 if x <= .04045 else ((x + .055)/1.055)**2.4) for w, x in zip((.2126, .7152, .0722), (int(c[i:i + 2], 16)/255 for i in (1, 3, 5))))
    hi, lo = sorted((light(a) + .05, light(b) + .05)); return lo/hi


def test_colours_of_the_explorers_can_be_told_from_the_page():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    light, dark = re.findall(r"\.rsx(?:\[data-dark=true\])? \{ (--rsx-target.*?);[ \n}]*(?:font|\})", (ROOT/"resispec_nb/assets/explore.css").read_text(), re.S)
    for text in (light, dark):
        colours = dict(re.findall(r"--rsx-(\w+):(#\w{6})", text)); back = colours.pop("back")
        assert len(colours) == 9
        for name, c in colours.items(): assert contrast(c, back) >= 4.5, (name, c, back)


def test_text_in_figures_can_be_read():
    """Letters are dark grey; a bar or a line of the house palette can be told from the white ground."""
    import matplotlib as mpl
    from resispec_nb import house
    house.use()
    for name in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"):
        c = mpl.rcParams[name]; c = mpl.rcParams["text.color"] if c == "auto" else c
        assert contrast(mpl.colors.to_hex(c), mpl.colors.to_hex(mpl.rcParams["figure.facecolor"])) >= 4.5, name
    for name, s in house.STYLE.items(): assert contrast(s["color"], "#ffffff") >= 2.9, name


# ---- the files

class Links(html.parser.HTMLParser):
    def __init__(self, text): super().__init__(); self.links, self.ids, self.images, self.title, self.lang = [], set(), [], "", None; self.feed(text)
    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if "id" in a: self.ids.add(a["id"])
        if tag == "html": self.lang = a.get("lang")
        if tag == "a" and a.get("name"): self.ids.add(a["name"])
        if tag == "img": self.images.append(a)
        for key in ("href", "src"):
            if a.get(key) and not a[key].startswith("data:"): self.links.append(a[key])
    def handle_startendtag(self, tag, attrs): self.handle_starttag(tag, attrs)


def read(page): return Links(page.read_text(encoding="utf-8"))


@needs_site
def test_there_is_a_page_for_every_notebook():
    assert len(PAGES) == len(NOTEBOOKS) and (DOCS/"index.html").exists()
    assert sum(p.stat().st_size for p in DOCS.rglob("*") if p.is_file()) <= 40 * 2**20


@needs_site
@every_page
def test_internal_links_resolve(page):
    known, broken = {page: read(page)}, []
    for link in known[page].links:
        at = urlsplit(urljoin(page.as_uri(), link))
        if at.scheme != "file": continue
        to = Path(unquote(at.path)); to = to/"index.html" if to.is_dir() else to
        if not to.is_file(): broken.append(link); continue
        if at.fragment and to.suffix == ".html":
            if to not in known: known[to] = read(to)
            if unquote(at.fragment) not in known[to].ids: broken.append(link)
    assert not broken, broken


@needs_site
@every_page
def test_a_page_says_what_it_is(page):
    text = page.read_text(encoding="utf-8"); found = read(page)
    assert re.search(r"<title>[^<]+</title>", text) and re.search(r'<meta name="description" content="[^"]+"', text) and found.lang
    for image in found.images: assert image.get("alt", "").strip(), str(image)[:120]


@needs_site
def test_search_finds_words_and_not_data():
    entries = json.loads((DOCS/"search.json").read_text())
    assert any("ceiling" in e["text"].lower() for e in entries)
    assert (DOCS/"search.json").stat().st_size < 2e6
    assert not any("atob(" in e["text"] for e in entries)


# ---- in a browser

@pytest.fixture(scope="module")
def address():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *a): pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(DOCS)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    if not MUST: pytest.skip("no pages to test: `make test` builds them where it finds a browser (Debian: apt-get install chromium), `make test-site` always")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install playwright")
    if not CHROMIUM: pytest.skip("no chromium found; apt-get install chromium, or set CHROMIUM to its path")
    with sync.sync_playwright() as pw:
        b = pw.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=SECONDS)
        yield b
        b.close()


class Visit:
    "A page opened with every other server out of reach."
    def __init__(self, browser, address, name, width=360, dark=False):
        self.context = browser.new_context(viewport=dict(width=width, height=800), color_scheme="dark" if dark else "light"); self.context.set_default_timeout(SECONDS)
        self.page = self.context.new_page(); self.troubles = []
        self.page.on("console", lambda m: self.troubles.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.troubles.append(str(e)))
        self.page.on("response", lambda r: self.troubles.append(f"{r.status} {r.url}") if r.status >= 400 and not r.url.endswith("favicon.ico") else None)
        def guard(route):
            if route.request.url.startswith((address, "data:", "blob:")): return route.continue_()
            self.troubles.append(f"left the site: {route.request.url}"); route.abort()
        self.context.route("**/*", guard)
        self.page.goto(address + name, wait_until="load")

    def __enter__(self): return self
    def __exit__(self, *a): self.context.close()
    def coloured(self, dark):
        "Wait until the theme is there: its style sheet may still be on its way."
        self.page.wait_for_function("dark => { const m = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number); return m.length === 3 && (m[0] < 128) === dark; }", arg=dark)
        self.page.wait_for_timeout(250)                                   # links change their colour slowly
    def shot(self, name, *parts):
        "Keep a picture of the top of the page, and of parts of it."
        SHOTS.mkdir(exist_ok=True); self.page.screenshot(path=SHOTS/f"{name}.png")
        for p in parts: self.page.locator(p).screenshot(path=SHOTS/f"{name}-{p.strip('#')}.png")


FIGURES = """async () => Promise.all([...document.querySelectorAll("img")].map(async i => {
  await i.decode().catch(() => 0); const c = document.createElement("canvas"); c.width = c.height = 24; const d = c.getContext("2d"); if (!i.naturalWidth) return 0;
  d.drawImage(i, 0, 0, 24, 24); return new Set(new Uint32Array(d.getImageData(0, 0, 24, 24).data.buffer)).size; }))"""


CONTRAST = """() => {   // text whose contrast with its ground is below 4.5, once for each colour
  const parse = c => { const m = c.match(/[\\d.]+/g); return m ? [+m[0], +m[1], +m[2], m.length > 3 ? +m[3] : 1] : [0, 0, 0, 0]; };
  const over = (a, b) => [0, 1, 2].map(i => a[i]*a[3] + b[i]*(1 - a[3])).concat(1);
  const light = c => [.2126, .7152, .0722].reduce((s, w, i) => { const x = c[i]/255; return s + w*(x <= .04045 ? x/12.92 : ((x + .055)/1.055)**2.4); }, 0);
  const ratio = (a, b) => { const [x, y] = [light(a) + .05, light(b) + .05].sort((m, n) => n - m); return x/y; };
  const ground = e => { if (!e) return [255, 255, 255, 1]; const c = parse(getComputedStyle(e).backgroundColor); return c[3] >= 1 ? c : over(c, ground(e.parentElement)); };
  const worst = {}, walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); let n = 0;
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || e.closest("script,style,noscript,option,title,defs,.katex-mathml") || !e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const s = getComputedStyle(e), b = ground(e), c = parse(e instanceof SVGElement ? s.fill : s.color);
    for (let x = e; x; x = x.parentElement) c[3] *= +getComputedStyle(x).opacity;
    const r = ratio(over(c, b), b), key = [c.slice(0, 3), b.slice(0, 3)].join("|"); n++;
    if (!(key in worst) || r < worst[key][0]) worst[key] = [r, text.slice(0, 40)];
  }
  return [n, Object.values(worst).filter(v => v[0] < 4.5)];
}"""


@each_page
def test_page_in_a_narrow_window(browser, address, page):
    source = json.loads((ROOT/"nbs"/next(n for n in NOTEBOOKS if n.rsplit(".", 1)[0] == page.stem or n.split("_", 1)[-1].rsplit(".", 1)[0] == page.stem)).read_text())
    pictures = sum("image/png" in o.get("data", {}) for c in source["cells"] for o in c.get("outputs", []) if not "".join(c["source"]).startswith("#| hide"))
    formulas = any(re.search(r"\$[^$\n]+\$", "".join(c["source"])) for c in source["cells"] if c["cell_type"] == "markdown")
    with Visit(browser, address, page.name) as v:
        v.page.wait_for_function("document.querySelectorAll('.math').length === document.querySelectorAll('.math .katex, .math mjx-container').length")
        colours = v.page.evaluate(FIGURES)
        assert len(colours) >= pictures and all(n > 2 for n in colours), colours
        math, done, wrong = v.page.evaluate("""[document.querySelectorAll(".math").length, document.querySelectorAll(".math .katex, .math mjx-container").length, document.querySelectorAll(".katex-error").length]""")
        assert (math > 0) >= formulas and done == math and wrong == 0, (math, done, wrong)   # `Visit` lets nothing leave the site, so KaTeX came from it
        v.shot(f"{page.stem}-360", *(["#rsx-temperature", "#rsx-tree"] if page.stem.endswith("explore") else []))
        wide, inner = v.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= inner, f"{wide} pixels in a window of {inner}"
        for dark in (False, True):
            v.page.emulate_media(color_scheme="dark" if dark else "light"); v.page.evaluate("dark => document.documentElement.classList.toggle('quarto-dark', dark)", dark); v.coloured(dark)
            seen, faint = v.page.evaluate(CONTRAST)
            assert seen > 20 and not faint, (dark, faint)
        assert not v.troubles, v.troubles


def test_every_page_leads_to_the_symbols_and_has_its_sidebar(browser, address):
    with Visit(browser, address, "07_trees.html", width=1300) as v:
        v.page.click("footer a:has-text('Symbols')"); v.page.wait_for_load_state(); assert v.page.url.endswith("00_symbols.html")
        for scheme in ("light", "dark"):
            v.page.emulate_media(color_scheme=scheme); v.page.reload(); v.coloured(scheme == "dark"); v.shot(f"symbols-{scheme}")
            seen, faint = v.page.evaluate(CONTRAST)                      # in a wide window the sidebar and the contents are there, too
            assert seen > 60 and not faint, (scheme, faint)
        v.page.fill(".sidebar-search input, #quarto-search input", "ceiling"); v.page.wait_for_selector(".search-result, .aa-Item"); v.shot("search")
        seen, faint = v.page.evaluate(CONTRAST); assert not faint, faint
        assert not v.troubles, v.troubles


def test_contrast_is_measured(browser, address):
    with Visit(browser, address, "00_house.html") as v:
        v.page.evaluate("document.querySelector('main p').style.color = '#999'")
        assert v.page.evaluate(CONTRAST)[1]


@pytest.fixture(scope="module")
def explorers(): return next((p.name for p in PAGES if p.stem.endswith("explore")), "14_explore.html")


def numbers(page, root): return page.evaluate(f"Object.fromEntries([...document.querySelectorAll('#{root} output[data-name]')].map(o => [o.dataset.name, o.dataset.value]))")


def turn(page, root, **knobs):
    for name, value in knobs.items():
        page.evaluate("""([root, name, value]) => { const e = document.querySelector(`#${root} [name=${name}]`);
          if (e.type === "checkbox") e.checked = value; else { e.value = value; if (e.value !== String(value) && +e.value !== +value) throw new Error(`${name} cannot be ${value}`); } e.dispatchEvent(new Event("input", {bubbles: true})); }""", [root, name, value])


TEMPERATURE = [(0, 1.0, 3, "resispec"), (7, .3, 2, "specinfer"), (12, .05, 4, "kseq"), (21, 1.7, 4, "anchored"), (3, .6, 1, "resispec"), (29, 2.0, 3, "anchored")]


def test_temperature_explorer_says_what_python_says(browser, address, explorers):
    from resispec_nb.ceiling import anchored_ceiling, ceiling
    from resispec_nb.explore import look, published_bias, recorded_nodes
    nodes = recorded_nodes()
    with Visit(browser, address, explorers, width=1000) as v:
        v.page.wait_for_selector("#rsx-temperature[data-ready]")
        for node, T, k, rule in TEMPERATURE:
            turn(v.page, "rsx-temperature", node=node, temperature=T, k=k, rule=rule)
            p, q = nodes[node].laws(T); want = look(p, q, k, rule); bias, accepts = published_bias(p, q, k); got = numbers(v.page, "rsx-temperature")
            expected = {**{f"rank{i + 1}": a for i, a in enumerate(want.plan.by_rank.tolist())}, "acceptance": want.plan.acceptance.item(), "ceiling": ceiling(p, q, k).item(),
                        "overlap": 1 - want.blind[0].item(), "blind": want.blind[k].item(), "bias": bias, "biased_acceptance": accepts}
            if rule == "anchored": expected["anchored_ceiling"] = anchored_ceiling(p, q, k).item()
            assert set(got) == set(expected)
            for name, x in expected.items(): assert abs(float(got[name]) - x) <= 1e-6, (node, T, k, rule, name, got[name], x)
        assert not v.troubles, v.troubles
        v.shot("explorers", "#rsx-temperature")


# the number of candidates comes first: it says how many levels there can be
TREE = [dict(shape="", branch=2, levels=3, rule="specinfer", budgets=False, temperature=1, quality=0, draft=.1, free=1, position=.024, most=64),
        dict(shape="", branch=3, levels=5, rule="stratified", budgets=True, temperature=.6, quality=.3333, draft=.05, free=64, position=.001, most=128),
        dict(shape="", branch=2, levels=7, rule="resispec", budgets=True, temperature=1, quality=.6667, draft=.3, free=16, position=.006, most=40),
        dict(shape="32", branch=2, levels=3, rule="without_replacement", budgets=False, temperature=.6, quality=0, draft=.05, free=64, position=.001, most=64),
        dict(shape="64", branch=2, levels=3, rule="stratified", budgets=True, temperature=1, quality=.3333, draft=0, free=64, position=.001, most=70)]


def test_tree_explorer_says_what_python_says(browser, address, explorers):
    from resispec_nb.explore import best_trees, step_cost, tree_flow, tree_tables, uneven_tree, uneven_tree_flow
    tables, fastest = tree_tables(), set()
    with Visit(browser, address, explorers, dark=True, width=1000) as v:
        v.page.wait_for_selector("#rsx-tree[data-ready]")
        for knobs in TREE:
            turn(v.page, "rsx-tree", **knobs); got = numbers(v.page, "rsx-tree")
            mine, uneven = ([r for r in tables[key] if all(r[n] == knobs[n] for n in ("temperature", "quality", "rule"))] for key in ("rows", "uneven")); row = next(r for r in mine if r["branch"] == knobs["branch"])
            cost, levels, flow = {n: knobs[n] for n in ("draft", "free", "position")}, knobs["levels"], tree_flow(row, knobs["levels"], knobs["budgets"])
            if knobs["shape"]: shape = next(s for s in uneven if s["size"] == int(knobs["shape"])); levels, flow = uneven_tree(shape).levels, uneven_tree_flow(shape, mine, knobs["budgets"])
            s = step_cost(levels, len(flow), **cost)
            for name, x in dict(tokens=flow.sum().item(), size=len(flow), levels=levels, cost=s, speedup=flow.sum().item()/s, overlap=row["overlap"]).items(): assert abs(float(got[name]) - x) <= 1e-6, (knobs, name, got[name], x)
            best = best_trees(mine, knobs["budgets"], knobs["most"], uneven, **cost)[0]; fastest.add(best["tree"][:4])
            assert got["best"] == best["tree"] and v.page.is_disabled("#rsx-tree [name=levels]") == bool(knobs["shape"])
        assert "best" in fastest and len(fastest) > 1
        assert not v.troubles, v.troubles
        v.shot("explorers-dark", "#rsx-tree")


def test_explorers_by_keyboard_in_light_and_dark(browser, address, explorers):
    with Visit(browser, address, explorers, width=1000) as v:
        v.page.wait_for_selector("#rsx-temperature[data-ready]")
        unnamed = v.page.evaluate("[...document.querySelectorAll('.rsx input, .rsx select')].filter(e => !e.labels.length || !e.labels[0].textContent.trim()).map(e => e.name)")
        assert unnamed == []
        v.page.focus("#rsx-temperature [name=temperature]"); before = numbers(v.page, "rsx-temperature")
        v.page.keyboard.press("ArrowLeft"); assert numbers(v.page, "rsx-temperature") != before
        v.page.keyboard.press("ArrowRight"); assert numbers(v.page, "rsx-temperature") == before
        v.page.focus("#rsx-tree [name=levels]"); tokens = numbers(v.page, "rsx-tree")["tokens"]
        v.page.keyboard.press("ArrowRight"); assert numbers(v.page, "rsx-tree")["tokens"] != tokens
        assert v.page.get_attribute("#rsx-tree", "data-dark") == "false"
        v.page.evaluate("const s = document.createElement('style'); s.textContent = 'body { background: #111 !important; color: #eee }'; document.head.append(s); document.body.classList.add('quarto-dark')")
        v.page.wait_for_selector("#rsx-tree[data-dark=true]")

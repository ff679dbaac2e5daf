"""The pages of results, `more_lab/results/*.md`: thin readers of the runs that lie beside them.

    more sweep mistakes.toml -o OUT                                           # or another file of this folder
    python -m more_lab.panel keep OUT --stream mistakes --half held >> more_lab/results/panel.jsonl
    python -m more_lab.panel show PANEL.md                                    # docs/figures.py writes all pages

Runs are made by `more sweep` and `more run`, never here. `table` is what all pages share; each of the others makes one
page: `models` (PANEL.md), `editors`, `retention`, `ablations`, `long`, `speed` (RESULTS.md), and `regimes` a table of
docs/research/unseen-models.md.
"""

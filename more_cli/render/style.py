"""CSS of the HTML report: one column that fits a phone, light or dark like the reader's system."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --faint: #667; --line: #d8dbe0; --card: #f6f7f9;
  --track: #e3e6eb; --bar: #3f6fb5; --good: #1c6b3a; --bad: #a3261c; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e6e8eb; --faint: #9aa3ad; --line: #353a41;
  --card: #1e2126; --track: #2c3138; --bar: #6c9be0; --good: #6fcf97; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1, h3, p, dd { overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: .5rem 0 0; }
p { margin: .25rem 0; }
.lead { font-size: 1.25rem; }
p.bad, .why { color: var(--bad); }
ul { margin: 0 0 .5rem; padding-left: 1.5rem; }
li { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
td:last-child { white-space: normal; }
th, .tick, .variants, dt { color: var(--faint); font-weight: normal; }
code, pre { font-family: ui-monospace, monospace; font-size: .875em; }
pre { overflow-x: auto; padding: 1rem; background: var(--card); }
summary { margin-top: 2rem; cursor: pointer; }
figure { flex: 1 1 20rem; margin: .5rem 0 1rem; max-width: 32rem; min-width: 0; }
.pair { display: flex; flex-wrap: wrap; column-gap: 2.5rem; align-items: flex-start; }
svg { display: block; width: 100%; height: auto; font: 11px ui-monospace, monospace; fill: var(--ink); }
svg .track { fill: var(--track); }
svg .bar { fill: var(--bar); }
svg .whisker { stroke: var(--ink); stroke-width: 1.5; fill: none; }
svg .tick { fill: var(--faint); }
svg .grid { stroke: var(--line); fill: none; }
svg .line { stroke: var(--bar); stroke-width: 2; fill: none; }
svg .line.thin { stroke-width: 1; }
svg .limit { stroke: var(--bad); stroke-dasharray: 4 3; fill: none; }
svg .dot { fill: var(--paper); stroke: var(--ink); stroke-width: 1.5; }
figcaption { color: var(--faint); font-size: .875rem; margin-bottom: .25rem; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
article { background: var(--card); border-top: 3px solid var(--good); padding: .75rem; }
article.bad { border-color: var(--bad); }
.pictures { display: flex; flex-wrap: wrap; gap: .25rem; min-height: 9rem; align-items: center; }
.pictures img { max-width: 100%; height: 9rem; object-fit: contain; }
.pictures span { color: var(--faint); }
dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .75rem; margin: .25rem 0; }
dd { margin: 0; }
.verdict { font-weight: 600; }
.verdict.good { color: var(--good); }
.verdict.bad { color: var(--bad); }
.variants, .why, article summary, article table { font-size: .875rem; }
article summary { margin-top: .25rem; }
article table { table-layout: fixed; width: 100%; }
article th, article td { white-space: normal; overflow-wrap: anywhere; padding-right: .5rem; }
@media (max-width: 40rem) { main > section td:last-child { min-width: 50vw; } article td:last-child { min-width: 0; } }
td img { display: block; max-height: 3rem; }
"""

"""Tables about work and the economy at large."""

from __future__ import annotations

import pandas as pd

from vrag_nb.documents.decks.source_series import Dataset, SeriesSource, TableSource, numbers, package_file
from vrag_nb.documents.decks.tables import Column

_STATES = {
    "AL": "Alabama",
    "AZ": "Arizona",
    "CA": "California",
    "CO": "Colorado",
    "FL": "Florida",
    "ME": "Maine",
    "MI": "Michigan",
    "NJ": "New Jersey",
    "NV": "Nevada",
    "OH": "Ohio",
    "OR": "Oregon",
    "WA": "Washington",
    "UT": "Utah",
}


def counties() -> list[SeriesSource]:
    data = Dataset(
        "unemployment09",
        "Labor force by county, 2009",
        "train",
        "public domain",
        "US Bureau of Labor Statistics",
        "bokeh-sampledata, unemployment09.csv.gz",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/unemployment09.csv.gz"), header=None, thousands=",")
    frame["state"] = frame[3].str[-2:]
    columns = (
        Column("Labor force", unit="persons", additive=True),
        Column("Employment", unit="persons", additive=True),
        Column("Unemployment", unit="persons", additive=True),
        Column("Unemployment rate", suffix="%", decimals=1),
    )
    found = []
    for code, state in _STATES.items():
        part = frame[frame["state"] == code].copy()
        part.index = part[3].str.replace(r" (County|Borough).*$", "", regex=True)
        part = part[~part.index.str.contains(",") & (part.index.str.len() <= 16)].head(40)
        wide = part[[5, 6, 7, 8]].apply(pd.to_numeric, errors="coerce")
        table = TableSource(wide, columns, f"in {state} counties, 2009", "County", "counties")
        found.append(SeriesSource(f"{state} Labor Market", data, (table,)))
    return found


def unemployment_history() -> list[SeriesSource]:
    data = Dataset(
        "unemployment1948",
        "US unemployment rate by month",
        "train",
        "public domain",
        "US Bureau of Labor Statistics",
        "bokeh-sampledata, unemployment1948.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/unemployment1948.csv"), index_col="Year")
    months = {"Jan": "January", "Apr": "April", "Jul": "July", "Oct": "October", "Annual": "Annual mean"}
    found = []
    for name, years in (
        ("Postwar Unemployment", range(1948, 1970)),
        ("Unemployment 1970 to 1991", range(1970, 1992)),
        ("Unemployment since 1992", range(1992, 2014)),
    ):
        wide = frame.loc[list(years), list(months)].rename(columns=months)
        table = TableSource(
            wide,
            numbers(wide.columns, suffix="%", decimals=1),
            "in the United States",
            "Year",
            "years",
            "Unemployment rate",
            "time",
            "group",
        )
        found.append(SeriesSource(name, data, (table,)))
    return found


def employment() -> list[SeriesSource]:
    data = Dataset(
        "us-employment",
        "US employment by sector",
        "test",
        "public domain",
        "US Bureau of Labor Statistics",
        "vega-datasets, us-employment.csv",
    )
    frame = pd.read_csv(package_file("vega_datasets", "_data/us-employment.csv"))
    dates = pd.to_datetime(frame["month"])
    names = {
        "construction": "Construction",
        "manufacturing": "Manufacturing",
        "retail_trade": "Retail trade",
        "wholesale_trade": "Wholesale trade",
        "information": "Information",
        "financial_activities": "Finance",
        "education_and_health_services": "Education and health",
        "leisure_and_hospitality": "Leisure and hospitality",
        "government": "Government",
        "other_services": "Other services",
        "utilities": "Utilities",
        "mining_and_logging": "Mining and logging",
        "transportation_and_warehousing": "Transport",
        "professional_and_business_services": "Business services",
    }
    yearly = frame[list(names)].rename(columns=names).groupby(dates.dt.year).mean().T.sort_index()
    form = {"unit": "thousands", "additive": True}
    found = []
    for name, years in (("Jobs 2006 to 2010", range(2006, 2011)), ("Jobs 2011 to 2015", range(2011, 2016))):
        wide = yearly[list(years)]
        table = TableSource(
            wide, numbers(wide.columns, **form), "by US sector", "Sector", "sectors", "Employment", "entity", "time"
        )
        found.append(SeriesSource(name, data, (table,)))
    quarters = frame[["nonfarm", "private", "government"]].rename(
        columns={
            "nonfarm": "Nonfarm employment",
            "private": "Private employment",
            "government": "Government employment",
        }
    )
    quarters.index = dates.dt.strftime("%B %Y")
    rows = quarters.iloc[::5]
    table = TableSource(
        rows, numbers(rows.columns, unit="thousands"), "in the United States", "Month", "months", "", "time"
    )
    found.append(SeriesSource("Monthly Payrolls", data, (table,)))
    return found


def macro() -> list[SeriesSource]:
    data = Dataset(
        "macrodata",
        "US macroeconomic quarters",
        "train",
        "public domain",
        "Federal Reserve Bank of St. Louis",
        "statsmodels, datasets/macrodata",
    )
    from statsmodels.datasets import macrodata

    frame = macrodata.load_pandas().data
    frame.index = [f"Q{int(q)} {int(y)}" for q, y in zip(frame["quarter"], frame["year"], strict=True)]
    names = {
        "realgdp": Column("Real GDP", unit="billion dollars"),
        "realcons": Column("Consumption", unit="billion dollars"),
        "realinv": Column("Investment", unit="billion dollars"),
        "cpi": Column("Consumer price index", decimals=1),
        "unemp": Column("Jobless rate", suffix="%", decimals=1),
        "tbilrate": Column("Treasury bill rate", suffix="%", decimals=2),
    }
    found = []
    for name, start, step in (
        ("American Economy 1960s", 0, 2),
        ("American Economy 1980s", 84, 2),
        ("American Economy 2000s", 160, 2),
    ):
        part = frame.iloc[start : start + 40 : step][list(names)]
        table = TableSource(part, tuple(names.values()), "in the United States", "Quarter", "quarters", "", "time")
        found.append(SeriesSource(name, data, (table,)))
    return found


def longley() -> list[SeriesSource]:
    data = Dataset(
        "longley",
        "Longley's US economy 1947-1962",
        "test",
        "public domain",
        "Longley (1967)",
        "statsmodels, datasets/longley",
    )
    from statsmodels.datasets import longley as source

    frame = source.load_pandas().data
    frame.index = frame["YEAR"].astype(int)
    columns = (
        Column("Total employment", unit="thousands"),
        Column("Price deflator", decimals=1),
        Column("Unemployment", unit="thousands"),
        Column("Armed forces strength", unit="thousands"),
        Column("Population over 14", unit="thousands"),
    )
    table = TableSource(
        frame[["TOTEMP", "GNPDEFL", "UNEMP", "ARMED", "POP"]],
        columns,
        "in the Longley data",
        "Year",
        "years",
        "",
        "time",
    )
    return [SeriesSource("Longley Economy", data, (table,))]


def grunfeld() -> list[SeriesSource]:
    data = Dataset(
        "grunfeld",
        "Investment of American firms 1935-1954",
        "test",
        "public domain",
        "Grunfeld (1950)",
        "statsmodels, datasets/grunfeld",
    )
    from statsmodels.datasets import grunfeld as source

    frame = source.load_pandas().data
    frame["year"] = frame["year"].astype(int)
    found = []
    for name, years in (("Firms before 1945", range(1935, 1945, 2)), ("Firms after 1945", range(1946, 1955, 2))):
        tables = []
        for field, measure in (("invest", "Gross investment"), ("value", "Market value"), ("capital", "Capital stock")):
            wide = frame[frame["year"].isin(years)].pivot_table(index="firm", columns="year", values=field)
            columns = numbers(wide.columns, prefix="$", suffix="M", decimals=1, additive=True)
            tables.append(TableSource(wide, columns, "of American firms", "Firm", "firms", measure, "entity", "time"))
        found.append(SeriesSource(name, data, tuple(tables)))
    return found


MAKERS = (counties, unemployment_history, employment, macro, longley, grunfeld)

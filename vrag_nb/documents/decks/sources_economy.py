"""Tables about work, money, energy and transport."""

from __future__ import annotations

import pandas as pd

from vrag_nb.documents.decks.sources import Dataset, SeriesSource, TableSource, numbers, package_file
from vrag_nb.documents.decks.sources_society import members, short
from vrag_nb.documents.decks.tables import Column

_STATES = {
    "AL": "Alabama", "AZ": "Arizona", "CA": "California", "CO": "Colorado", "FL": "Florida", "ME": "Maine",
    "MI": "Michigan", "NJ": "New Jersey", "NV": "Nevada", "OH": "Ohio", "OR": "Oregon", "WA": "Washington",
    "UT": "Utah",
}  # fmt: skip


def counties() -> list[SeriesSource]:
    data = Dataset(
        "unemployment09", "Labor force by county, 2009", "train", "public domain", "US Bureau of Labor Statistics",
        "bokeh-sampledata, unemployment09.csv.gz",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/unemployment09.csv.gz"), header=None, thousands=",")
    frame["state"] = frame[3].str[-2:]
    columns = (Column("Labor force", additive=True), Column("Employed persons", additive=True),
               Column("Unemployed persons", additive=True), Column("Unemployment rate", suffix="%", decimals=1))  # fmt: skip
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
        "unemployment1948", "US unemployment rate by month", "train", "public domain", "US Bureau of Labor Statistics",
        "bokeh-sampledata, unemployment1948.csv",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/unemployment1948.csv"), index_col="Year")
    months = {"Jan": "January", "Apr": "April", "Jul": "July", "Oct": "October", "Annual": "Annual mean"}
    found = []
    for name, years in (("Postwar Unemployment", range(1948, 1970)), ("Unemployment 1970 to 1991", range(1970, 1992)),
                        ("Unemployment since 1992", range(1992, 2014))):  # fmt: skip
        wide = frame.loc[list(years), list(months)].rename(columns=months)
        table = TableSource(
            wide, numbers(wide.columns, suffix="%", decimals=1), "in the United States", "Year", "years",
            "Unemployment rate", "time", "group",
        )  # fmt: skip
        found.append(SeriesSource(name, data, (table,)))
    return found


def employment() -> list[SeriesSource]:
    data = Dataset(
        "us-employment", "US employment by sector", "test", "public domain", "US Bureau of Labor Statistics",
        "vega-datasets, us-employment.csv",
    )  # fmt: skip
    frame = pd.read_csv(package_file("vega_datasets", "_data/us-employment.csv"))
    dates = pd.to_datetime(frame["month"])
    names = {
        "construction": "Construction", "manufacturing": "Manufacturing", "retail_trade": "Retail trade",
        "wholesale_trade": "Wholesale trade", "information": "Information", "financial_activities": "Finance",
        "education_and_health_services": "Education and health", "leisure_and_hospitality": "Leisure and hospitality",
        "government": "Government", "other_services": "Other services", "utilities": "Utilities",
        "mining_and_logging": "Mining and logging", "transportation_and_warehousing": "Transport",
        "professional_and_business_services": "Business services",
    }  # fmt: skip
    yearly = frame[list(names)].rename(columns=names).groupby(dates.dt.year).mean().T.sort_index()
    form = {"unit": "thousands", "additive": True}
    found = []
    for name, years in (("Jobs 2006 to 2010", range(2006, 2011)), ("Jobs 2011 to 2015", range(2011, 2016))):
        wide = yearly[list(years)]
        table = TableSource(wide, numbers(wide.columns, **form), "by US sector", "Sector", "sectors", "Employment", "entity", "time")  # type: ignore[arg-type]  # fmt: skip
        found.append(SeriesSource(name, data, (table,)))
    quarters = frame[["nonfarm", "private", "government"]].rename(columns={"nonfarm": "Nonfarm jobs", "private": "Private jobs", "government": "Government jobs"})  # fmt: skip
    quarters.index = dates.dt.strftime("%B %Y")
    rows = quarters.iloc[::5]
    table = TableSource(rows, numbers(rows.columns, unit="thousands"), "in the United States", "Month", "months", "", "time")
    found.append(SeriesSource("Monthly Payrolls", data, (table,)))
    return found


def macro() -> list[SeriesSource]:
    data = Dataset(
        "macrodata", "US macroeconomic quarters", "train", "public domain", "Federal Reserve Bank of St. Louis",
        "statsmodels, datasets/macrodata",
    )  # fmt: skip
    from statsmodels.datasets import macrodata

    frame = macrodata.load_pandas().data
    frame.index = [f"Q{int(q)} {int(y)}" for q, y in zip(frame["quarter"], frame["year"], strict=True)]
    names = {
        "realgdp": Column("Real GDP", unit="billion dollars"), "realcons": Column("Consumption", unit="billion dollars"),
        "realinv": Column("Investment", unit="billion dollars"), "cpi": Column("Consumer price index", decimals=1),
        "unemp": Column("Jobless rate", suffix="%", decimals=1),
        "tbilrate": Column("Treasury bill rate", suffix="%", decimals=2),
    }  # fmt: skip
    found = []
    for name, start, step in (("American Economy 1960s", 0, 2), ("American Economy 1980s", 84, 2), ("American Economy 2000s", 160, 2)):
        part = frame.iloc[start : start + 40 : step][list(names)]
        scope = f"in the United States from {part.index[0].split()[1]}"
        table = TableSource(part, tuple(names.values()), scope, "Quarter", "quarters", "", "time")
        found.append(SeriesSource(name, data, (table,)))
    return found


def longley() -> list[SeriesSource]:
    data = Dataset(
        "longley", "Longley's US economy 1947-1962", "test", "public domain", "Longley (1967)", "statsmodels, datasets/longley",
    )  # fmt: skip
    from statsmodels.datasets import longley as source

    frame = source.load_pandas().data
    frame.index = frame["YEAR"].astype(int)
    columns = (
        Column("Total employment", unit="thousands"), Column("Price deflator", decimals=1),
        Column("Unemployed", unit="thousands"), Column("Armed forces", unit="thousands"),
        Column("Population over 14", unit="thousands"),
    )  # fmt: skip
    table = TableSource(frame[["TOTEMP", "GNPDEFL", "UNEMP", "ARMED", "POP"]] * [1, 1, 0.1, 0.1, 1], columns, "in the Longley data", "Year", "years", "", "time")  # fmt: skip
    return [SeriesSource("Longley Economy", data, (table,))]


def grunfeld() -> list[SeriesSource]:
    data = Dataset(
        "grunfeld", "Investment of American firms 1935-1954", "test", "public domain", "Grunfeld (1950)",
        "statsmodels, datasets/grunfeld",
    )  # fmt: skip
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


def emissions() -> list[SeriesSource]:
    data = Dataset(
        "emissions", "CO2 emissions per person", "test", "public domain", "CDIAC", "bokeh-sampledata, emissions.csv.gz",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/emissions.csv.gz"))
    frame["country"] = short(frame["country"])
    frame["year"] = frame["year"].astype(int)
    found = []
    for name, groups in {
        "Carbon Europe": ("Northern Europe", "Southern Europe", "Central Europe"),
        "Carbon Americas": ("South America", "Central America"),
        "Carbon Asia": ("East Asia", "South Asia", "Middle East"),
    }.items():
        countries = sorted(c for group in groups for c in members(group))
        tables = []
        for first, last in ((1972, 1990), (1993, 2011)):
            part = frame[frame["country"].isin(countries) & frame["year"].isin(range(first, last + 1, 3))]
            wide = part.pivot_table(index="country", columns="year", values="emissions")
            columns = numbers(wide.columns, unit="tonnes per person", decimals=2)
            tables.append(TableSource(wide, columns, f"in {name.split()[1]}", "Country", "countries", "Carbon emissions", "entity", "time"))  # fmt: skip
        found.append(SeriesSource(name, data, tuple(tables)))
    return found


def iowa() -> list[SeriesSource]:
    data = Dataset(
        "iowa-electricity", "Electricity generation in Iowa", "test", "public domain", "US Energy Information Administration",
        "vega-datasets, iowa-electricity.csv",
    )  # fmt: skip
    frame = pd.read_csv(package_file("vega_datasets", "_data/iowa-electricity.csv"))
    wide = frame.assign(year=frame["year"].str[:4]).pivot_table(index="year", columns="source", values="net_generation")
    wide.columns = ["Fossil generation", "Nuclear generation", "Renewable generation"]
    table = TableSource(wide, numbers(wide.columns, unit="GWh", additive=True), "in Iowa", "Year", "years", "", "time")
    share = wide.div(wide.sum(axis=1), axis=0) * 100
    share.columns = ["Fossil share", "Nuclear share", "Renewable share"]
    shares = TableSource(share, numbers(share.columns, suffix="%", decimals=1), "in Iowa", "Year", "years", "", "time")
    return [SeriesSource("Iowa Electricity", data, (table, shares))]


def superstore() -> list[SeriesSource]:
    data = Dataset(
        "superstore", "Sample Superstore", "test", "CC0", "Sample Superstore demonstration data",
        "bokeh-sampledata, SampleSuperstore.csv.gz",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/SampleSuperstore.csv.gz"))
    columns = (Column("Sales", prefix="$", additive=True), Column("Profit", prefix="$", additive=True),
               Column("Items sold", additive=True), Column("Mean discount", suffix="%", decimals=1))  # fmt: skip
    found = []
    for name, key, header, plural, scope in (
        ("Superstore Products", "Sub-Category", "Category", "categories", "by product category"),
        ("Superstore States", "State", "State", "states", "by state"),
    ):
        groups = frame.groupby(key)
        wide = pd.DataFrame({"s": groups["Sales"].sum(), "p": groups["Profit"].sum(), "q": groups["Quantity"].sum(),
                             "d": groups["Discount"].mean() * 100})  # fmt: skip
        wide = wide.drop(index=["District of Columbia"], errors="ignore")
        found.append(SeriesSource(name, data, (TableSource(wide, columns, f"of the Superstore {scope}", header, plural),)))
    return found


def cars() -> list[SeriesSource]:
    data = Dataset(
        "auto-mpg", "Cars of 1970 to 1982", "train", "CC0", "Donoho and Ramos (1982)", "bokeh-sampledata, auto-mpg.csv",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/auto-mpg.csv"))
    frame["name"] = frame["name"].str.title().replace({"Vw": "VW", "Amc": "AMC", "Bmw": "BMW"}, regex=True)
    columns = (Column("Fuel economy", unit="mpg", decimals=1), Column("Horsepower"), Column("Weight", unit="lb"),
               Column("Acceleration", unit="s to 60 mph", decimals=1), Column("Displacement", unit="cu in"))  # fmt: skip
    found = []
    for name, origin, years in (
        ("American Cars 1970 to 1973", 1, (70, 73)), ("American Cars 1978 to 1982", 1, (78, 82)),
        ("European Cars", 2, (70, 82)), ("Japanese Cars", 3, (70, 82)),
    ):  # fmt: skip
        part = frame[(frame["origin"] == origin) & frame["yr"].between(*years) & (frame["name"].str.len() <= 20)]
        part = part.drop_duplicates("name").sort_values("name").set_index("name")
        step = max(1, len(part) // 36)
        wide = part.iloc[::step][["mpg", "hp", "weight", "accel", "displ"]]
        found.append(SeriesSource(name, data, (TableSource(wide, columns, f"of {name}", "Model", "models"),)))
    return found


def fuel() -> list[SeriesSource]:
    data = Dataset(
        "auto-mpg2", "EPA fuel economy 1999 and 2008", "train", "public domain", "US Environmental Protection Agency",
        "bokeh-sampledata, auto-mpg2.csv",
    )  # fmt: skip
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/auto-mpg2.csv"))
    frame["model"] = frame["model"].str.replace(" 4wd", "").str.replace(" awd", "").str.title()
    columns = (Column("City mileage", unit="mpg", decimals=1), Column("Highway mileage", unit="mpg", decimals=1),
               Column("Engine size", unit="litres", decimals=1))  # fmt: skip
    found = []
    for name, key, header, plural in (("Fuel Economy by Maker", "manufacturer", "Maker", "makers"), ("Fuel Economy by Model", "model", "Model", "models")):  # fmt: skip
        groups = frame.assign(manufacturer=frame["manufacturer"].str.title()).groupby(key)
        wide = groups[["cty", "hwy", "displ"]].mean()
        found.append(SeriesSource(name, data, (TableSource(wide, columns, f"by {header.lower()}", header, plural),)))
    return found


def travel() -> list[SeriesSource]:
    data = Dataset(
        "modechoice", "Travel mode choice between Sydney and Melbourne", "train", "public domain", "Greene (2003)",
        "statsmodels, datasets/modechoice",
    )  # fmt: skip
    from statsmodels.datasets import modechoice

    frame = modechoice.load_pandas().data
    frame["mode"] = frame["mode"].map({1: "Air", 2: "Train", 3: "Bus", 4: "Car"})
    wide = frame.groupby("mode").agg(ttme=("ttme", "mean"), invc=("invc", "mean"), invt=("invt", "mean"), gc=("gc", "mean"), chosen=("choice", "sum"))  # fmt: skip
    columns = (Column("Waiting time", unit="minutes", decimals=1), Column("Vehicle cost", prefix="$", decimals=1),
               Column("Travel time", unit="minutes", decimals=1), Column("Generalised cost", prefix="$", decimals=1),
               Column("Travellers", additive=True))  # fmt: skip
    rich = frame.assign(income=pd.cut(frame["hinc"], [0, 15, 25, 35, 45, 100], labels=["Up to 15k", "15k to 25k", "25k to 35k", "35k to 45k", "Over 45k"]))  # fmt: skip
    chosen = rich[rich["choice"] == 1].pivot_table(index="income", columns="mode", values="choice", aggfunc="sum", observed=True)
    by_income = TableSource(chosen.fillna(0), numbers(chosen.columns, additive=True), "between Sydney and Melbourne", "Income group", "income groups", "Travellers by income", "entity", "group")  # fmt: skip
    table = TableSource(wide, columns, "between Sydney and Melbourne", "Mode", "modes")
    return [SeriesSource("Sydney Travel Modes", data, (table, by_income))]


def driving() -> list[SeriesSource]:
    data = Dataset(
        "driving", "Miles driven and gas prices", "dev", "BSD-3-Clause (vega-datasets)", "New York Times, 2 May 2010",
        "vega-datasets, driving.json",
    )  # fmt: skip
    frame = pd.read_json(package_file("vega_datasets", "_data/driving.json")).set_index("year").sort_index()
    columns = (Column("Miles per person"), Column("Gas price", prefix="$", decimals=2))
    wide = frame[["miles", "gas"]]
    tables = tuple(
        TableSource(part, columns, f"in America {span}", "Year", "years", "", "time")
        for span, part in (("before 1983", wide.loc[:1982]), ("since 1983", wide.loc[1983:]))
    )
    return [SeriesSource("American Driving", data, tables)]


def wheat() -> list[SeriesSource]:
    data = Dataset(
        "wheat", "Price of wheat and weekly wages", "test", "public domain", "William Playfair (1822)",
        "vega-datasets, wheat.json",
    )  # fmt: skip
    frame = pd.read_json(package_file("vega_datasets", "_data/wheat.json")).set_index("year")
    columns = (Column("Wheat price", unit="shillings", decimals=1), Column("Weekly wage", unit="shillings", decimals=2))
    tables = tuple(
        TableSource(part, columns, f"in England {span}", "Year", "years", "", "time")
        for span, part in (("to 1690", frame.loc[:1690]), ("from 1695", frame.loc[1695:1810]))
    )
    return [SeriesSource("Playfair Wheat", data, tables)]


def airports() -> list[SeriesSource]:
    data = Dataset(
        "airport-routes", "US airports and their routes, July 2026", "dev", "public domain",
        "OurAirports; US Bureau of Transportation Statistics", "bokeh-sampledata, airports.csv and routes.csv.gz",
    )  # fmt: skip
    places = pd.read_csv(package_file("bokeh_sampledata", "_data/airports.csv"))
    routes = pd.read_csv(package_file("bokeh_sampledata", "_data/routes.csv.gz"))
    places = places.assign(
        routes=places["IATA"].map(routes.groupby("Source")["Destination"].nunique()),
        airlines=places["IATA"].map(routes.groupby("Source")["Airline"].nunique()),
    ).dropna(subset=["routes"])
    places = places[places["City"].str.len() <= 16].drop_duplicates("City").set_index("City").sort_index()
    columns = (Column("Destinations"), Column("Airlines"), Column("Altitude", unit="feet"),
               Column("Latitude", suffix="°", decimals=2))  # fmt: skip
    wide = places[["routes", "airlines", "Altitude", "Latitude"]]
    found = []
    for name, low, high, scope in (("Large Hubs", 40, 999, "of large US airports"), ("Regional Airports", 6, 39, "of regional US airports")):  # fmt: skip
        part = wide[wide["routes"].between(low, high)].iloc[:36]
        found.append(SeriesSource(name, data, (TableSource(part, columns, scope, "City", "cities"),)))
    return found


MAKERS = (
    counties, unemployment_history, employment, macro, longley, grunfeld, emissions, iowa, superstore, cars, fuel, travel,
    driving, wheat, airports,
)  # fmt: skip

"""Tables about energy, goods, cars and travel."""

from __future__ import annotations

import pandas as pd

from vrag_nb.documents.decks.source_series import Dataset, SeriesSource, TableSource, numbers, package_file
from vrag_nb.documents.decks.sources_population import members, short
from vrag_nb.documents.decks.tables import Column


def emissions() -> list[SeriesSource]:
    data = Dataset(
        "emissions",
        "CO2 emissions per person",
        "test",
        "public domain",
        "CDIAC",
        "bokeh-sampledata, emissions.csv.gz",
    )
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
            tables.append(
                TableSource(
                    wide, columns, f"in {name.split()[1]}", "Country", "countries", "Carbon emissions", "entity", "time"
                )
            )
        found.append(SeriesSource(name, data, tuple(tables)))
    return found


def iowa() -> list[SeriesSource]:
    data = Dataset(
        "iowa-electricity",
        "Electricity generation in Iowa",
        "test",
        "public domain",
        "US Energy Information Administration",
        "vega-datasets, iowa-electricity.csv",
    )
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
        "superstore",
        "Sample Superstore",
        "test",
        "CC0",
        "Sample Superstore demonstration data",
        "bokeh-sampledata, SampleSuperstore.csv.gz",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/SampleSuperstore.csv.gz"))
    columns = (
        Column("Sales revenue", prefix="$", additive=True),
        Column("Profit", prefix="$", additive=True),
        Column("Sales volume", unit="items", additive=True),
        Column("Mean discount", suffix="%", decimals=1),
    )
    found = []
    for name, key, header, plural, scope in (
        ("Superstore Products", "Sub-Category", "Category", "categories", "by product category"),
        ("Superstore States", "State", "State", "states", "by state"),
    ):
        groups = frame.groupby(key)
        wide = pd.DataFrame(
            {
                "s": groups["Sales"].sum(),
                "p": groups["Profit"].sum(),
                "q": groups["Quantity"].sum(),
                "d": groups["Discount"].mean() * 100,
            }
        )
        wide = wide.drop(index=["District of Columbia"], errors="ignore")
        found.append(
            SeriesSource(name, data, (TableSource(wide, columns, f"of the Superstore {scope}", header, plural),))
        )
    return found


def cars() -> list[SeriesSource]:
    data = Dataset(
        "auto-mpg",
        "Cars of 1970 to 1982",
        "train",
        "CC0",
        "Donoho and Ramos (1982)",
        "bokeh-sampledata, auto-mpg.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/auto-mpg.csv"))
    frame["name"] = frame["name"].str.title().replace({"Vw": "VW", "Amc": "AMC", "Bmw": "BMW"}, regex=True)
    columns = (
        Column("Fuel economy", unit="mpg", decimals=1),
        Column("Horsepower"),
        Column("Weight", unit="lb"),
        Column("Acceleration", unit="s to 60 mph", decimals=1),
        Column("Displacement", unit="cu in"),
    )
    found = []
    for name, origin, years in (
        ("American Cars 1970 to 1973", 1, (70, 73)),
        ("American Cars 1978 to 1982", 1, (78, 82)),
        ("European Cars", 2, (70, 82)),
        ("Japanese Cars", 3, (70, 82)),
    ):
        part = frame[(frame["origin"] == origin) & frame["yr"].between(*years) & (frame["name"].str.len() <= 20)]
        part = part.drop_duplicates("name").sort_values("name").set_index("name")
        step = max(1, len(part) // 36)
        wide = part.iloc[::step][["mpg", "hp", "weight", "accel", "displ"]]
        found.append(SeriesSource(name, data, (TableSource(wide, columns, f"of {name}", "Model", "models"),)))
    return found


def fuel() -> list[SeriesSource]:
    data = Dataset(
        "auto-mpg2",
        "EPA fuel economy 1999 and 2008",
        "train",
        "public domain",
        "US Environmental Protection Agency",
        "bokeh-sampledata, auto-mpg2.csv",
    )
    frame = pd.read_csv(package_file("bokeh_sampledata", "_data/auto-mpg2.csv"))
    frame["model"] = frame["model"].str.replace(" 4wd", "").str.replace(" awd", "").str.title()
    columns = (
        Column("City mileage", unit="mpg", decimals=1),
        Column("Highway mileage", unit="mpg", decimals=1),
        Column("Engine size", unit="litres", decimals=1),
    )
    found = []
    for name, key, header, plural in (
        ("Fuel Economy by Maker", "manufacturer", "Maker", "makers"),
        ("Fuel Economy by Model", "model", "Model", "models"),
    ):
        groups = frame.assign(manufacturer=frame["manufacturer"].str.title()).groupby(key)
        wide = groups[["cty", "hwy", "displ"]].mean()
        found.append(SeriesSource(name, data, (TableSource(wide, columns, f"by {header.lower()}", header, plural),)))
    return found


def travel() -> list[SeriesSource]:
    data = Dataset(
        "modechoice",
        "Travel mode choice between Sydney and Melbourne",
        "train",
        "public domain",
        "Greene (2003)",
        "statsmodels, datasets/modechoice",
    )
    from statsmodels.datasets import modechoice

    frame = modechoice.load_pandas().data
    frame["mode"] = frame["mode"].map({1: "Air", 2: "Train", 3: "Bus", 4: "Car"})
    wide = frame.groupby("mode").agg(
        ttme=("ttme", "mean"), invc=("invc", "mean"), invt=("invt", "mean"), gc=("gc", "mean"), chosen=("choice", "sum")
    )
    columns = (
        Column("Waiting time", unit="minutes", decimals=1),
        Column("Vehicle cost", prefix="$", decimals=1),
        Column("Travel time", unit="minutes", decimals=1),
        Column("Generalised cost", prefix="$", decimals=1),
        Column("Number of travellers", additive=True),
    )
    rich = frame.assign(
        income=pd.cut(
            frame["hinc"],
            [0, 15, 25, 35, 45, 100],
            labels=["Up to 15k", "15k to 25k", "25k to 35k", "35k to 45k", "Over 45k"],
        )
    )
    chosen = rich[rich["choice"] == 1].pivot_table(
        index="income", columns="mode", values="choice", aggfunc="sum", observed=True
    )
    by_income = TableSource(
        chosen.fillna(0),
        numbers(chosen.columns, additive=True),
        "between Sydney and Melbourne",
        "Income group",
        "income groups",
        "Traveller count",
        "entity",
        "group",
    )
    table = TableSource(wide, columns, "between Sydney and Melbourne", "Mode", "modes")
    return [SeriesSource("Sydney Travel Modes", data, (table, by_income))]


def driving() -> list[SeriesSource]:
    data = Dataset(
        "driving",
        "Miles driven and gas prices",
        "dev",
        "MIT (vega-datasets)",
        "New York Times, 2 May 2010",
        "vega-datasets, driving.json",
    )
    frame = pd.read_json(package_file("vega_datasets", "_data/driving.json")).set_index("year").sort_index()
    columns = (Column("Distance driven", unit="miles per person"), Column("Gas price", prefix="$", decimals=2))
    wide = frame[["miles", "gas"]]
    tables = tuple(
        TableSource(part, columns, "in America", "Year", "years", "", "time")
        for part in (wide.loc[:1982], wide.loc[1983:])
    )
    return [SeriesSource("American Driving", data, tables)]


def wheat() -> list[SeriesSource]:
    data = Dataset(
        "wheat",
        "Price of wheat and weekly wages",
        "test",
        "public domain",
        "William Playfair (1822)",
        "vega-datasets, wheat.json",
    )
    frame = pd.read_json(package_file("vega_datasets", "_data/wheat.json")).set_index("year")
    columns = (Column("Wheat price", unit="shillings", decimals=1), Column("Weekly wage", unit="shillings", decimals=2))
    tables = tuple(
        TableSource(part, columns, "in England", "Year", "years", "", "time")
        for part in (frame.loc[:1690], frame.loc[1695:1810])
    )
    return [SeriesSource("Playfair Wheat", data, tables)]


def airports() -> list[SeriesSource]:
    data = Dataset(
        "airport-routes",
        "US airports and their routes, July 2026",
        "dev",
        "public domain",
        "OurAirports; US Bureau of Transportation Statistics",
        "bokeh-sampledata, airports.csv and routes.csv.gz",
    )
    places = pd.read_csv(package_file("bokeh_sampledata", "_data/airports.csv"))
    routes = pd.read_csv(package_file("bokeh_sampledata", "_data/routes.csv.gz"))
    places = places.assign(
        routes=places["IATA"].map(routes.groupby("Source")["Destination"].nunique()),
        airlines=places["IATA"].map(routes.groupby("Source")["Airline"].nunique()),
    ).dropna(subset=["routes"])
    places = places[places["City"].str.len() <= 16].drop_duplicates("City").set_index("City").sort_index()
    columns = (
        Column("Number of destinations"),
        Column("Number of airlines"),
        Column("Altitude", unit="feet"),
        Column("Latitude", suffix="°", decimals=2),
    )
    wide = places[["routes", "airlines", "Altitude", "Latitude"]]
    found = []
    for name, low, high, scope in (
        ("Large Hubs", 40, 999, "of large US airports"),
        ("Regional Airports", 6, 39, "of regional US airports"),
    ):
        part = wide[wide["routes"].between(low, high)].iloc[:36]
        found.append(SeriesSource(name, data, (TableSource(part, columns, scope, "City", "cities"),)))
    return found


MAKERS = (emissions, iowa, superstore, cars, fuel, travel, driving, wheat, airports)

//! The form of tables: flags that `bench train`, `sample` and `growth` share.

/// How tables are printed.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Markdown,
    Csv,
    Json,
}

#[derive(clap::Args)]
pub struct Form {
    /// Form of the tables
    #[arg(long, value_enum, default_value_t = Format::Markdown, value_name = "F")]
    format: Format,
    /// Print JSON, as --format json does
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl Form {
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

//! Arguments of the commands that read captions or text.

use tweedie::config::DataConfig;
use tweedie::data::{self, Layout, Task};

use crate::failure::Result;
use crate::shared::names::{LAYOUTS, TASKS, one_of};

#[derive(clap::Args)]
pub struct SequenceArgs {
    /// What the data are for (default: by looking)
    #[arg(long, value_name = "TASK", value_parser = one_of::<Task>(TASKS))]
    pub task: Option<Task>,
    /// Column or field of captions; several, parted by commas, are put together
    #[arg(long, value_name = "NAME")]
    pub caption_column: Option<String>,
    /// Column or field of text
    #[arg(long, value_name = "NAME")]
    pub text_column: Option<String>,
    /// Column of images
    #[arg(long, value_name = "NAME")]
    pub image_column: Option<String>,
    /// Folder of the images that COCO's files name
    #[arg(long, value_name = "FOLDER")]
    pub image_folder: Option<String>,
    /// Text line by line (lines) or as one stream (packed)
    #[arg(long, value_name = "LAYOUT", value_parser = one_of::<Layout>(LAYOUTS), default_value = "lines")]
    pub layout: Layout,
}

impl SequenceArgs {
    /// The task that was given, or the one that looking suggests.
    pub fn task_of(&self, path: &str) -> Result<Task> {
        Ok(match self.task {
            Some(task) => task,
            None => data::guess_task(path)?,
        })
    }

    /// As settings.
    pub fn config(&self, path: &str, task: Task) -> DataConfig {
        let text = |s: &Option<String>| s.clone().unwrap_or_default();
        DataConfig {
            path: path.into(),
            task,
            caption_column: text(&self.caption_column),
            text_column: text(&self.text_column),
            image_column: text(&self.image_column),
            image_folder: text(&self.image_folder),
            layout: self.layout,
            ..DataConfig::default()
        }
    }
}

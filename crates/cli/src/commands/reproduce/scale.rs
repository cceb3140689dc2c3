//! What there is to make, at which sizes, and which goes with which.

use clap::ValueEnum;

use crate::failure::{Failure, Result};

/// Tables and figures of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Table 1: TDD with and without coefficients against MDD
    Main,
    /// The ablation table: loss, guidance, coefficients, sampler
    Ablation,
    /// Accuracy over sampling steps, both weightings
    Steps,
    /// Cross-entropy against regression over iterations
    Loss,
    /// TDD and MDD over epochs
    Curves,
    /// TDD and MDD on few images for many epochs: which overfits first
    Overfitting,
    /// Networks trained by regression over sampling steps
    Regression,
    /// The output distribution step by step
    Heatmap,
    /// Captions by TDD and by MDD beside those of people
    Captions,
    /// CLIPScore of true, shuffled and generated captions
    Clipscore,
    /// A caption at every sampling step beside its image
    Trajectory,
    /// Probabilities of single words over sampling steps
    Tokens,
    /// All of these that the scale has
    All,
}

/// Two tasks, each with data, recipe and runs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// Classification.
    Classes,
    /// Image captions.
    Captions,
}

/// Data and networks of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// 8×8 digits and drawn scenes inside the program, minutes on a CPU
    Digits,
    /// CIFAR-10, one GPU; needs --data
    Cifar10,
    /// Ten classes of ImageNet at 96×96, one GPU; needs --data
    Imagenette,
    /// A thousand characters in fonts that were not trained on, one GPU; needs --data
    Characters,
    /// Captions of COCO photos at 96×96, one GPU; needs --data
    Coco,
    /// Captions of COCO photos at 224×224 in sub-words, days of one GPU; needs --data
    #[value(name = "coco-224")]
    Coco224,
    /// The paper's own: ImageNet and its captions at 224×224, many GPU days; needs --data
    Imagenet,
}

/// As it is typed.
pub fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |v| v.get_name().to_string())
}

impl What {
    /// The task that it is about; none for all.
    pub fn task(self) -> Option<TaskKind> {
        use What::*;
        match self {
            Main | Ablation | Steps | Loss | Curves | Overfitting | Regression | Heatmap => Some(TaskKind::Classes),
            Captions | Clipscore | Trajectory | Tokens => Some(TaskKind::Captions),
            All => None,
        }
    }
}

impl Scale {
    /// The recipe of a task, where the scale has that task.
    pub fn recipe(self, task: TaskKind) -> Option<&'static str> {
        match (self, task) {
            (Scale::Digits, TaskKind::Classes) => Some("digits"),
            (Scale::Digits, TaskKind::Captions) => Some("shapes"),
            (Scale::Cifar10, TaskKind::Classes) => Some("cifar10"),
            (Scale::Imagenette, TaskKind::Classes) => Some("imagenette"),
            (Scale::Characters, TaskKind::Classes) => Some("characters"),
            (Scale::Coco, TaskKind::Captions) => Some("coco-96"),
            (Scale::Coco224, TaskKind::Captions) => Some("coco-224"),
            (Scale::Imagenet, TaskKind::Classes) => Some("imagenet-vit-b16"),
            (Scale::Imagenet, TaskKind::Captions) => Some("imagenet-vl-captions"),
            (Scale::Cifar10 | Scale::Imagenette | Scale::Characters, TaskKind::Captions)
            | (Scale::Coco | Scale::Coco224, TaskKind::Classes) => None,
        }
    }

    /// What the numbers of a task are about, and what they are not.
    pub fn said(self, task: TaskKind) -> &'static str {
        match (self, task) {
            (Scale::Digits, TaskKind::Classes) => {
                "8×8 digits, not ImageNet: only the direction can be compared with the paper."
            }
            (Scale::Digits, TaskKind::Captions) => {
                "Sentences about drawn scenes, not captions of photos: only the direction can be compared \
                 with the paper."
            }
            (Scale::Cifar10, _) => {
                "CIFAR-10 at 32×32, not ImageNet: only the direction can be compared with the paper."
            }
            (Scale::Imagenette, _) => {
                "Ten classes of ImageNet at 96×96, not all thousand at 224×224: only the direction can be compared with \
                 the paper."
            }
            (Scale::Characters, _) => {
                "A thousand characters at 32×32, as many classes as ImageNet has and no photos: only the direction can be compared \
                 with the paper."
            }
            (Scale::Coco224, _) => "COCO at 224×224 in sub-words: the paper's second task.",
            (Scale::Coco, _) => {
                "COCO photos at 96×96 and a small network trained from scratch: only the direction can be compared with the \
                 paper."
            }
            (Scale::Imagenet, TaskKind::Classes) => "The paper's scale: ImageNet at 224×224 with ViT-B/16.",
            (Scale::Imagenet, TaskKind::Captions) => {
                "ImageNet with captions at 224×224. The paper's numbers of captions are of COCO: only the direction can be \
                 compared."
            }
        }
    }

    /// That it has what is asked for; else an error that says which scales do.
    pub fn check(self, what: What) -> Result<()> {
        let Some(task) = what.task().filter(|p| self.recipe(*p).is_none()) else { return Ok(()) };
        let have = Scale::value_variants().iter().filter(|s| s.recipe(task).is_some()).map(|s| name_of(*s));
        let have: Vec<String> = have.collect();
        let task = match task {
            TaskKind::Classes => "classes",
            TaskKind::Captions => "captions",
        };
        let (what, scale) = (name_of(what), name_of(self));
        Err(Failure::input(format!("{what} is about {task}, of which there are none at --scale {scale}"))
            .hint(format!("scales with {task}: {}", have.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_has_something_and_says_what() {
        for scale in Scale::value_variants() {
            let tasks = [TaskKind::Classes, TaskKind::Captions].into_iter().filter(|p| scale.recipe(*p).is_some());
            assert!(tasks.inspect(|p| assert!(!scale.said(*p).is_empty())).count() > 0);
        }
        assert!(Scale::Digits.check(What::Tokens).is_ok() && Scale::Coco.check(What::All).is_ok());
        let refused = Scale::Cifar10.check(What::Captions).unwrap_err().to_string();
        assert!(refused.contains("captions") && refused.contains("cifar10"), "{refused}");
    }
}

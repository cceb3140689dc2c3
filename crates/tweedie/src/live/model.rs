//! The jobs of one model.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tweedie_engine::cpu::batch_invariant;
use tweedie_engine::ops::choose::FREE;
use tweedie_engine::{Device, Tensor};

use super::lane::{End, Lane, Role, Row, Told};
use super::network::Network;
use super::plan::{Path, Plan};
use super::{Event, Job, JobId, LiveStep, Outcome, Place};
use crate::classify::{answer_of, check_numbers};
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::generate::{RANK_DRAWS, ending_of, free_ending, ranked, texts_of};
use crate::process::Process;
use crate::sample::{Kept, mean_vote, softmax};
use crate::trained::Trained;

/// A model that many askers share. Jobs join ([`LiveModel::admit`]) and leave between two steps.
///
/// ```
/// use std::rc::Rc;
/// use tweedie::config::SampleConfig;
/// use tweedie::engine::{DType, Device};
/// use tweedie::live::{Event, Job, LiveModel};
/// use tweedie::model::{DenoiserConfig, Model, ModelConfig, Sizes};
/// use tweedie::tokenize::{Kind, Tokenizer};
/// use tweedie::{Process, Schedule, ScheduleKind, Trained};
///
/// let tokenizer = Tokenizer::train(Kind::Chars, 99, ["abba", "baba"])?;
/// let sizes = Sizes { vocab: tokenizer.vocab(), tokens: 6 };
/// let config = ModelConfig { denoiser: DenoiserConfig::new(16, 1, 2), ..ModelConfig::preset("text")? };
/// let model = Model::new(&config, sizes, &Device::Cpu, DType::F32, 0)?;
/// let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, sizes.vocab)?);
/// let trained = Trained { tokenizer: Some(tokenizer.into()), ..Trained::bare(model, process) };
///
/// let mut live = LiveModel::new(Rc::new(trained), 8)?;
/// let sample = SampleConfig { steps: 3, ..SampleConfig::default() };
/// live.admit(vec![Job::new(&sample)]).remove(0)?;
/// live.step()?;
/// live.admit(vec![Job { example: 1, ..Job::new(&sample) }]).remove(0)?; // joins at the second step
/// let mut done = 0;
/// while !live.is_idle() {
///     done += live.step()?.iter().filter(|(_, event)| matches!(event, Event::Done(_))).count();
/// }
/// assert_eq!(done, 2);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct LiveModel {
    net: Network,
    lanes: Vec<Lane>,
    /// In the order in which they came.
    jobs: BTreeMap<JobId, Running>,
    /// Places for conditions.
    free: Vec<u32>,
    most: usize,
    next: u64,
    /// Marks that ends of texts are made of, u32 \[K\].
    marks: Option<Tensor>,
}

/// A job that has begun.
struct Running {
    job: Job,
    place: Option<u32>,
    /// What its candidates or votes came to.
    ends: Vec<Option<End>>,
    /// Logits of the draws for the posterior.
    posterior: Vec<Option<Vec<f32>>>,
    /// Events that are known already.
    ready: VecDeque<Event>,
}

impl LiveModel {
    /// A model that works on up to `most` rows at once.
    pub fn new(trained: Rc<Trained>, most: usize) -> Result<LiveModel> {
        let most = most.max(1);
        let marks = match &trained.tokenizer {
            Some(tokenizer) => {
                let ending = free_ending(tokenizer);
                let all: Vec<u32> = [ending.eos, ending.pad].into_iter().chain(ending.unk).collect();
                Some(Tensor::from_u32(&trained.model.device(), &[all.len()], all)?)
            }
            None => None,
        };
        let net = Network::new(trained, most);
        let free = (0..most as u32).rev().collect();
        Ok(LiveModel { net, lanes: Vec::new(), jobs: BTreeMap::new(), free, most, next: 0, marks })
    }

    /// The model.
    pub fn trained(&self) -> &Trained {
        &self.net.trained
    }

    /// Rows that a job takes: one for each candidate or vote.
    pub fn rows_of(&self, job: &Job) -> usize {
        match self.net.trained.tokenizer {
            Some(_) => job.sample.candidates,
            None => job.sample.votes,
        }
    }

    /// Rows that are free. A job of more rows than there can be is admitted where nothing else runs.
    pub fn room(&self) -> usize {
        self.most.saturating_sub(self.jobs.values().map(|running| running.ends.len()).sum())
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Begin with jobs, whose images are encoded together; or say of each what is wrong with it.
    pub fn admit(&mut self, jobs: Vec<Job>) -> Vec<Result<JobId>> {
        batch_invariant(|| {
            let plans: Vec<Result<Plan>> = jobs.iter().map(|job| self.plan(job)).collect();
            let images: Vec<&[f32]> =
                jobs.iter().zip(&plans).filter(|p| p.1.is_ok()).filter_map(|(job, _)| job.image.as_deref()).collect();
            let encoded = self.encode(&images);
            let mut encoded = encoded.map_err(|e| e.to_string()).map(Vec::into_iter);
            let mut begin = |job: Job, plan: Result<Plan>| {
                let (plan, image) = (plan?, job.image.is_some());
                let seen = match &mut encoded {
                    Ok(all) if image => all.next(),
                    Ok(_) => None,
                    Err(e) => return Err(Error::Input(e.clone())),
                };
                Ok(self.begin(job, plan, seen))
            };
            jobs.into_iter().zip(plans).map(|(job, plan)| begin(job, plan)).collect()
        })
    }

    fn plan(&mut self, job: &Job) -> Result<Plan> {
        let plan = Plan::of(&self.net.trained, job)?;
        if self.net.model().has_denoiser() {
            let process = &self.net.trained.process;
            let (mut all, mut kinds) = (plan.path.times(process), vec![plan.path.kind.noise]);
            if let Some((path, _)) = &plan.posterior {
                all.extend(path.times(process));
                kinds.push(path.kind.noise);
            }
            let clean = self.net.per_token_time().then_some(Process::FIRST);
            for noise in kinds {
                self.net.prepare(all.iter().copied().chain(clean), noise)?;
            }
        }
        Ok(plan)
    }

    /// Encode images, and give each a place; of the masked twin of a classifier, say what it says.
    fn encode(&mut self, images: &[&[f32]]) -> Result<Vec<Seen>> {
        let Some(first) = images.first() else { return Ok(Vec::new()) };
        let (device, e) = (self.net.device(), &self.net.model().config().encoder);
        let size = if device == Device::Cpu { images.len() } else { images.len().next_power_of_two() };
        let padded: Vec<&[f32]> = images.iter().copied().chain(std::iter::repeat(*first)).take(size).collect();
        let values = padded.concat();
        let tensor = Tensor::from_f32(&device, &[size, e.channels, e.image, e.image], values)?;
        if !self.net.model().has_denoiser() {
            let logits = self.net.class_logits(&tensor)?;
            let vocab = self.net.model().sizes().vocab;
            return Ok(logits.chunks_exact(vocab).take(images.len()).map(|l| Seen::Logits(l.to_vec())).collect());
        }
        if self.free.len() < images.len() {
            return Err(Error::Input(format!("{} images, there is room for {}", images.len(), self.free.len())));
        }
        let mut places = self.free.split_off(self.free.len() - images.len());
        places.sort_unstable();
        let at: Vec<usize> = places.iter().map(|place| *place as usize).collect();
        match self.net.encode(&tensor, &at) {
            Ok(()) => Ok(places.into_iter().map(Seen::Place).collect()),
            Err(e) => {
                self.free.extend(places);
                Err(e)
            }
        }
    }

    fn begin(&mut self, job: Job, plan: Plan, seen: Option<Seen>) -> JobId {
        self.next += 1;
        let id = JobId(self.next);
        let place = match &seen {
            Some(Seen::Place(place)) => Some(*place),
            _ => None,
        };
        let Plan { path, rows, start, kept, committed, posterior, top } = plan;
        let (draws, votes) = (posterior.as_ref().map_or(0, |p| p.1.len()), rows.len());
        let mut running = Running {
            job,
            place,
            ends: (0..votes).map(|_| None).collect(),
            posterior: vec![None; draws],
            ready: VecDeque::new(),
        };
        if let Some(Seen::Logits(logits)) = seen {
            running.ready.push_back(Event::Step(one_pass(&logits, top)));
            running.ready.push_back(self.answer(&logits, &logits));
            self.jobs.insert(id, running);
            return id;
        }
        let n = kept.tokens.len();
        let (at, tokens) = start;
        let row = |role, path: &Rc<Path>, (seed, example), at, tokens: &[u32]| Row {
            job: id,
            role,
            path: path.clone(),
            seed,
            example,
            place: place.unwrap_or(0),
            at,
            top,
            probabilities: running.job.probabilities,
            tokens: tokens.to_vec(),
            log_probs: vec![0.0; n],
            fixed: committed.clone(),
            pinned: kept.tokens.iter().map(|t| *t != FREE).collect(),
            bans: kept.bans.clone(),
            was: None,
        };
        for (i, address) in rows.into_iter().enumerate() {
            self.lane(&path).rows.push(row(Role::Sample(i), &path, address, at, &tokens));
        }
        if let Some((path, addresses)) = posterior {
            for (i, address) in addresses.into_iter().enumerate() {
                self.lane(&path).rows.push(row(Role::Posterior(i), &path, address, 0, &vec![0; n]));
            }
        }
        self.jobs.insert(id, running);
        id
    }

    fn lane(&mut self, path: &Path) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.kind == path.kind).unwrap_or_else(|| {
            self.lanes.push(Lane::new(path.kind));
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// Take one step of every job. A job is gone once its last event was told.
    pub fn step(&mut self) -> Result<Vec<(JobId, Event)>> {
        let mut events = Vec::new();
        for (id, running) in &mut self.jobs {
            events.extend(running.ready.drain(..).map(|event| (*id, event)));
        }
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in &mut lanes {
            match batch_invariant(|| lane.step(&self.net, self.marks.as_ref())) {
                Ok(told) => told.into_iter().for_each(|told| events.extend(self.tell(told))),
                Err(e) => events.extend(lane.rows.drain(..).map(|row| (row.job, Event::Failed(e.to_string())))),
            }
        }
        lanes.retain(|lane| !lane.rows.is_empty());
        self.lanes = lanes;
        // A job whose rows failed in several lanes fails once.
        let mut over = Vec::new();
        events.retain(|(id, event)| {
            let first = !over.contains(id);
            if !matches!(event, Event::Step(_)) {
                over.push(*id);
            }
            first
        });
        over.into_iter().for_each(|id| self.remove(id));
        Ok(events)
    }

    /// Note what a row came to, and tell it.
    fn tell(&mut self, told: Told) -> Vec<(JobId, Event)> {
        let mut events: Vec<(JobId, Event)> = told.step.into_iter().map(|step| (told.job, Event::Step(step))).collect();
        let (Some(end), Some(running)) = (told.end, self.jobs.get_mut(&told.job)) else { return events };
        match told.role {
            Role::Sample(i) => running.ends[i] = Some(end),
            Role::Posterior(i) => running.posterior[i] = Some(end.logits),
        }
        if running.ends.iter().all(Option::is_some)
            && running.posterior.iter().all(Option::is_some)
            && let Some(running) = self.jobs.remove(&told.job)
        {
            self.free.extend(running.place);
            events.push((told.job, self.finish(running)));
        }
        events
    }

    /// The result of a job whose rows are all over.
    fn finish(&self, running: Running) -> Event {
        let ends: Vec<End> = running.ends.into_iter().flatten().collect();
        if self.net.trained.tokenizer.is_none() {
            let vocab = self.net.model().sizes().vocab;
            let vote = |all: Vec<Vec<f32>>| match all.len() {
                1 => all.into_iter().next().unwrap_or_default(),
                _ => mean_vote(&all, vocab),
            };
            let posterior = vote(running.posterior.into_iter().flatten().collect());
            return self.answer(&vote(ends.into_iter().map(|end| end.logits).collect()), &posterior);
        }
        match batch_invariant(|| self.texts(&running.job, ends)) {
            Ok(texts) => Event::Done(Outcome::Texts(texts)),
            Err(e) => Event::Failed(e.to_string()),
        }
    }

    /// What is on an image, of the sampler's and the posterior's logits.
    fn answer(&self, sampled: &[f32], posterior: &[f32]) -> Event {
        let t = &self.net.trained;
        let by = t.temperature.unwrap_or(1.0);
        let posterior: Vec<f32> = posterior.iter().map(|l| (f64::from(*l) / by) as f32).collect();
        match check_numbers(sampled).and_then(|()| check_numbers(&posterior)) {
            Ok(()) => Event::Done(Outcome::Class(answer_of(&t.class_names, sampled, &posterior))),
            Err(e) => Event::Failed(e.to_string()),
        }
    }

    fn texts(&self, job: &Job, ends: Vec<End>) -> Result<Vec<crate::generate::Text>> {
        let t = &self.net.trained;
        let (mut tokens, mut log_probs) = (Vec::new(), Vec::new());
        for end in ends {
            tokens.extend(end.tokens);
            log_probs.extend(end.log_probs);
        }
        let ends = ending_of(t, job.length, job.min_length)?.is_some();
        let all = texts_of(t, &mut tokens, &log_probs, ends)?;
        if job.sample.candidates == 1 {
            return Ok(all);
        }
        let images = match &job.image {
            Some(values) => {
                let e = &t.model.config().encoder;
                Some(Tensor::from_f32(&t.model.device(), &[1, e.channels, e.image, e.image], values.clone())?)
            }
            None => None,
        };
        let by = (job.sample.candidates, job.sample.rank, RANK_DRAWS);
        ranked(t, (images.as_ref(), &[job.example]), all, &tokens, by)
    }

    /// Fix the token at `place` of a job's texts from the next step on, or free it again.
    pub fn pin(&mut self, id: JobId, place: usize, token: Option<u32>) -> Result<()> {
        let sizes = self.net.model().sizes();
        let Some(running) = self.jobs.get_mut(&id).filter(|_| self.net.trained.tokenizer.is_some()) else {
            return Err(Error::Input("there is no such text".into()));
        };
        if place >= sizes.tokens || token.is_some_and(|t| t as usize >= sizes.vocab) {
            let (n, v) = (sizes.tokens, sizes.vocab);
            return Err(Error::Input(format!("token {token:?} at place {place}; there are {n} places and {v} tokens")));
        }
        let mut fixed = running.job.fixed.clone().unwrap_or_else(|| vec![None; sizes.tokens]);
        fixed[place] = token;
        let ending = ending_of(&self.net.trained, running.job.length, running.job.min_length)?;
        let kept = Kept::new((1, sizes.tokens, sizes.vocab), Some(&fixed), ending.as_ref())?;
        running.job.fixed = Some(fixed);
        let rows = self.lanes.iter_mut().flat_map(|lane| &mut lane.rows).filter(|row| row.job == id);
        for row in rows {
            row.pin(place, token, sizes.vocab as u32);
            row.bans.clone_from(&kept.bans);
        }
        Ok(())
    }

    /// Forget a job that nobody waits for any more.
    pub fn remove(&mut self, id: JobId) {
        self.lanes.iter_mut().for_each(|lane| lane.rows.retain(|row| row.job != id));
        if let Some(running) = self.jobs.remove(&id) {
            self.free.extend(running.place);
        }
    }

    /// Compute what the first asker would otherwise wait for: on a GPU kernels and products of batches of every size that occurs, of the
    /// sampler that `sample` names.
    pub fn warm_up(&mut self, sample: &SampleConfig) -> Result<()> {
        let image = self.trained().transform.as_ref().map(|t| vec![0.0; t.values()]);
        let job = Job { image, ..Job::new(sample) };
        let most = match self.net.device() {
            Device::Cpu => 1,
            _ => self.most / self.rows_of(&job).max(1),
        };
        let sizes = std::iter::successors(Some(1), |size| (*size < most).then(|| (2 * size).min(most)));
        // Twice: what is seen a second time is captured.
        for size in sizes.flat_map(|size| [size; 2]) {
            for made in self.admit(vec![job.clone(); size]) {
                made?;
            }
            self.step()?;
            self.step()?;
            let all: Vec<JobId> = self.jobs.keys().copied().collect();
            all.into_iter().for_each(|id| self.remove(id));
        }
        Ok(())
    }
}

/// What encoding an image gives.
enum Seen {
    /// A place for its condition.
    Place(u32),
    /// The answer, of a model without steps.
    Logits(Vec<f32>),
}

/// The single step of the masked twin of a classifier, told time 0.
fn one_pass(logits: &[f32], top: usize) -> LiveStep {
    let p = softmax(logits);
    let place = Place { committed: true, ..Place::of_class(&p, top) };
    LiveStep { step: 1, of: 1, t: 0, alpha_bar: 1.0, places: vec![place], probabilities: Some(p) }
}

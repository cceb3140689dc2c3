//! The page of `tweedie serve` in a real Chromium. Skipped with a note where there is none; TWEEDIE_REQUIRE_CHROMIUM=1 makes that a failure.
//! Pictures of what was seen are in `target/page`.

mod browser;
mod modules;
mod server;

use std::path::PathBuf;

use browser::{Browser, Point};
use server::Server;

const TABS: [&str; 5] = ["draw", "scenes", "text", "runs", "method"];
/// Cells of the first heat map that have a value.
const CELLS: &str = "document.querySelectorAll('[data-run=\"0\"] .cell:not(.empty)').length";
const STEP: &str = "document.querySelector('.where span').textContent";

/// A seven, with the mouse.
fn draw_seven(b: &mut Browser) {
    let corners = [(0.28, 0.2), (0.72, 0.2), (0.45, 0.85)];
    let [left, right, foot]: [Point; 3] = corners.map(|(x, y)| b.within(".sketch", x, y));
    let between =
        |a: Point, z: Point, i: usize| (a.0 + (z.0 - a.0) * i as f64 / 8.0, a.1 + (z.1 - a.1) * i as f64 / 8.0);
    let mut line: Vec<Point> = (0..8).map(|i| between(left, right, i)).collect();
    line.extend((0..=8).map(|i| between(right, foot, i)));
    b.drag(&line);
}

fn answer(b: &mut Browser) -> String {
    b.text("document.querySelector('[data-run=\"0\"] .answer').textContent")
}

/// All steps have come and the last is shown.
fn complete(b: &mut Browser, steps: usize) {
    b.wait(&format!("{STEP} === 'step {steps} of {steps}'"));
}

#[test]
fn a_drawn_digit_is_read_step_by_step() {
    let Some(mut b) = Browser::start() else { return };
    let server = Server::start();
    b.size(1400, 900, false);
    b.open(&format!("{}/", server.url));
    b.wait("document.querySelector('.hint').checkVisibility()");
    draw_seven(&mut b);
    b.wait(&format!("{CELLS} >= 200"));
    b.wait("location.hash.includes('d=')"); // nothing has changed for a moment
    complete(&mut b, 20);
    assert_eq!(answer(&mut b), "7");
    assert_eq!(b.text("document.querySelector('#live').textContent").split(',').next(), Some("digits says 7"));

    // The timeline: by pointer, by keys, played.
    b.key("Home");
    b.wait(&format!("{STEP} === 'step 1 of 20'"));
    b.key("ArrowRight");
    b.wait(&format!("{STEP} === 'step 2 of 20'"));
    assert!(b.eval("document.querySelectorAll('[data-run=\"0\"] .cell.later').length") == 180);
    let half = b.within(".track input", 0.5, 0.8);
    b.drag(&[half]);
    b.wait(&format!("/step (10|11) of 20/.test({STEP})"));
    b.click(".time .buttons button:nth-child(2)");
    complete(&mut b, 20);

    // Settings answer at once, and the address has them.
    b.eval("(() => { const g = document.querySelector('.guidance input'); g.value = 4; g.dispatchEvent(new Event('input')); })()");
    b.wait("location.hash.includes('guidance=4')");
    b.eval("(() => { const s = document.querySelector('.steps input'); s.value = 12; s.dispatchEvent(new Event('input')); })()");
    complete(&mut b, 12);
    b.wait("location.hash.includes('steps=12') && location.hash.includes('d=')");
    let address = b.text("location.href");
    b.screenshot("draw-drawn");
    b.open(&address);
    complete(&mut b, 12);
    assert_eq!(answer(&mut b), "7", "the address alone brings it back");

    // The table behind the map has a row for each step.
    b.click("[data-run=\"0\"] summary");
    b.wait("document.querySelectorAll('[data-run=\"0\"] tbody tr').length === 12");
    b.is_quiet();
}

#[test]
fn a_file_is_dropped_pictures_are_saved_and_words_of_errors_help() {
    let Some(mut b) = Browser::start() else { return };
    let server = Server::start();
    b.size(1400, 900, true);
    b.open(&format!("{}/#/draw", server.url));
    let file = server.dir.path().join("one.png");
    std::fs::write(&file, picture_of_one()).unwrap();
    let at = b.within(".board", 0.5, 0.5);
    b.drop_file(at, &file);
    complete(&mut b, 20);
    assert_eq!(answer(&mut b), "1");

    let folder = server.dir.path().join("saved");
    b.call(
        "Browser.setDownloadBehavior",
        serde_json::json!({"behavior": "allow", "downloadPath": folder, "eventsEnabled": false}),
    );
    for (item, name) in [(1, "draw-tdd.svg"), (2, "draw-tdd.png")] {
        b.click(".actions button:last-child");
        b.click(&format!(".list button:nth-child({item})"));
        let path = folder.join(name);
        for _ in 0..200 {
            if path.is_file() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        match name.ends_with("svg") {
            true => {
                let text = String::from_utf8(bytes).unwrap();
                let drawing = roxmltree::Document::parse(&text).unwrap();
                assert!(drawing.descendants().filter(|n| n.has_tag_name("rect")).count() > 200);
                assert!(!text.contains("class="), "a saved picture must not need the style sheet");
            }
            false => assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 5000),
        }
    }
    let wrong = server.dir.path().join("notes.txt");
    std::fs::write(&wrong, "no picture").unwrap();
    let at = b.within(".board", 0.5, 0.5);
    b.drop_file(at, &wrong);
    b.wait("document.querySelector('.note.error')?.textContent.includes('notes.txt is not a picture')");
    b.is_quiet();
}

/// A dark stroke on light paper, as a photograph would have it.
fn picture_of_one() -> Vec<u8> {
    let (width, height) = (60, 80);
    let ink = |x: i32, y: i32| {
        (26..34).contains(&x) && (12..68).contains(&y) || (y - 12 - (30 - x)).abs() < 5 && (18..30).contains(&x)
    };
    let pixels: Vec<u8> = (0..width * height).map(|i| if ink(i % width, i / width) { 40 } else { 225 }).collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

#[test]
fn words_are_pinned_shapes_are_moved_and_gaps_are_filled() {
    let Some(mut b) = Browser::start() else { return };
    let server = Server::start();
    b.size(1400, 900, false);
    b.open(&format!("{}/#/scenes?scene=lrc16,8;lbs16,24", server.url));
    let sentence =
        "[...document.querySelectorAll('[data-run=\"0\"] .word:not(.mark)')].map((w) => w.textContent).join(' ')";
    b.wait(&format!("{sentence} === 'a large red circle above a large blue square'"));
    b.wait("/step (\\d+) of \\1$/.test(document.querySelector('.where span').textContent)");

    // Rivals under the pointer; a click opens the menu, a word of one's own is pinned.
    b.click("[data-run=\"0\"] .word:nth-child(3)");
    b.wait("document.querySelectorAll('.rivals li').length > 1");
    b.eval("[...document.querySelectorAll('.list button')].find((x) => x.textContent === 'green').click()");
    b.wait(&format!("{sentence}.startsWith('a large green')"));
    b.wait("document.querySelector('[data-run=\"0\"] .word:nth-child(3)').classList.contains('fixed')");
    b.wait("decodeURIComponent(location.hash).includes('\"2\":\"green\"')");
    b.screenshot("scenes-pinned");
    b.eval("document.querySelector('.aside button').click()");
    b.wait(&format!("{sentence} === 'a large red circle above a large blue square'"));

    // In the middle of a run: what is before the shown step stays.
    b.wait("/step (\\d+) of \\1$/.test(document.querySelector('.where span').textContent)");
    b.key("Home");
    for _ in 0..4 {
        b.key("ArrowRight");
    }
    b.wait("document.querySelector('.where span').textContent.startsWith('step 5 of')");
    b.eval("document.querySelector('[data-run=\"0\"] .word:nth-child(3)').focus()");
    b.key("Enter");
    b.wait("document.querySelector('.list')");
    b.eval("(() => { document.querySelector('.list input').value = 'black'; document.querySelector('.list form').requestSubmit(); })()");
    b.wait(&format!("{sentence}.startsWith('a large black')"));
    b.wait("/step (\\d+) of \\1$/.test(document.querySelector('.where span').textContent)");

    // Another scene by the mouse: the circle goes below the square.
    b.open(&format!("{}/#/scenes?scene=lrc8,16;lbs24,16", server.url));
    b.wait(&format!("{sentence} === 'a large red circle left of a large blue square'"));
    let [from, to] =
        [0.25, 0.75].map(|y| if y < 0.5 { b.within(".scene", 0.25, 0.5) } else { b.within(".scene", 0.25, y) });
    b.drag(&[from, ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0), to]);
    b.wait("document.querySelector('.object').getAttribute('transform') === 'translate(8 24)'");
    b.click(".choice[data-value=yellow]");
    b.wait(&format!("{sentence}.includes('yellow')"));
    b.wait("decodeURIComponent(location.hash).includes('lyc8,24')");

    // Gaps of a text, and its bits.
    b.open(&format!("{}/#/text?text={}", server.url, "ROMEO:%0AWhat ______ is it"));
    b.wait("document.querySelectorAll('#panel-text [data-run=\"0\"] .word.fixed').length >= 16");
    b.wait("document.querySelectorAll('.strip rect').length > 20");
    let filled = b.text("document.querySelector('#panel-text [data-run=\"0\"] .words').textContent");
    assert!(filled.starts_with("ROMEO:\nWhat ") && !filled[..22].contains('_'), "{filled}");
    b.screenshot("text-filled");
    b.is_quiet();
}

#[test]
fn a_run_that_is_training_is_followed_and_opened() {
    let Some(mut b) = Browser::start() else { return };
    let server = Server::start();
    b.size(1400, 900, false);
    b.open(&format!("{}/#/runs", server.url));
    b.wait("document.querySelector('.empty code')?.textContent.includes('tweedie train digits')");
    b.screenshot("runs-empty");
    let _training = server.train("watched");
    b.wait("document.querySelector('.run .status.training')");
    b.wait("document.querySelector('.plots .line')?.getAttribute('d').split('L').length > 3");
    // It goes on; a long curve is thinned, so that points do not count.
    let line = b.text("document.querySelector('.plots .line').getAttribute('d')");
    b.wait(&format!("document.querySelector('.plots .line').getAttribute('d') !== '{line}'"));
    b.screenshot("runs-training");
    b.wait("[...document.querySelectorAll('.fold summary')].some((s) => s.textContent.startsWith('Checkpoints'))");
    b.click(".run-head .primary");
    b.wait("location.hash.startsWith('#/draw') && document.querySelector('#model').value === 'watched'");
    draw_seven(&mut b);
    b.wait(&format!("{CELLS} > 0"));
    b.is_quiet();
}

#[test]
fn every_tab_fits_in_both_themes_on_phones_and_wide_screens() {
    let Some(mut b) = Browser::start() else { return };
    let server = Server::start();
    for (width, height) in [(390, 844), (1400, 900)] {
        for dark in [false, true] {
            b.size(width, height, dark);
            b.open(&format!("{}/", server.url));
            for (i, tab) in TABS.iter().enumerate() {
                b.key(&(i + 1).to_string());
                b.wait(&format!("document.querySelector('#panel-{tab}').checkVisibility()"));
                if *tab == "draw" {
                    b.click(".example:not(:disabled)");
                    complete(&mut b, 20);
                }
                if *tab == "scenes" {
                    b.wait("document.querySelectorAll('[data-run=\"0\"] .word:not(.mark)').length > 5");
                }
                assert_eq!(b.eval("document.documentElement.scrollWidth <= innerWidth"), true, "{tab} at {width}");
                b.screenshot(&format!("{tab}-{width}-{}", if dark { "dark" } else { "light" }));
            }
        }
    }
    b.key("?");
    b.wait("document.querySelector('#help-box').open");
    b.key("Escape");
    b.wait("!document.querySelector('#help-box').open");
    // The theme's button goes round: as the system, light, dark.
    b.click("#theme");
    assert_eq!(b.text("document.documentElement.dataset.theme"), "light");
    b.click("#theme");
    assert_eq!(b.text("document.documentElement.dataset.theme"), "dark");
    let unnamed = "[...document.querySelectorAll('button, input, select, textarea')].filter((e) => e.checkVisibility() && \
                   !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map((e) => e.outerHTML)";
    assert_eq!(b.eval(unnamed), serde_json::json!([]), "controls without a name");
    b.is_quiet();
}

#[test]
fn a_key_is_asked_for() {
    let Some(mut b) = Browser::start() else { return };
    let server = Server::with(&["--api-key", "sesame-open-123456"]);
    b.size(390, 844, false);
    b.call("Page.navigate", serde_json::json!({"url": server.url}));
    b.wait("document.querySelector('#key-box')?.open");
    b.eval("document.querySelector('#key').value = 'sesame-open-123456'");
    b.click("#key-box .primary");
    b.wait("document.querySelectorAll('.example:not(:disabled)').length === 8");
    b.click(".example");
    complete(&mut b, 20);
    // Browsers tell of the refusal itself; nothing else may go wrong.
    assert!(b.troubles.iter().all(|t| t.contains("401")), "{:?}", b.troubles);
}

/// Where a picture of the page comes from is the page itself: nothing is asked of another host.
#[test]
fn nothing_is_asked_of_another_host() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../serve/page");
    for entry in std::fs::read_dir(page).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let names = ["http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"]; // names, not addresses
        let rest = names.iter().fold(text.clone(), |t, n| t.replace(n, ""));
        assert!(!rest.contains("http://") && !rest.contains("https://"), "{}", path.display());
        assert!(!text.contains(" style=\"") && !text.contains("innerHTML"), "{}", path.display());
        assert!(text.lines().count() < 400, "{} is long", path.display());
    }
}

//! Words and scores of captions against `pycocoevalcap` (`reference/golden.py scores` made them).

use serde_json::Value;
use tweedie::metrics::captions::score;
use tweedie::metrics::ptb::tokenize_all;

fn golden() -> Value {
    serde_json::from_str(include_str!("fixtures/captions/golden.json")).unwrap()
}

fn strings(v: &Value) -> Vec<String> {
    v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_string()).collect()
}

fn lists(v: &Value) -> Vec<Vec<String>> {
    v.as_array().unwrap().iter().map(strings).collect()
}

#[track_caller]
fn same_words(lines: &[String], want: &[String]) {
    let got = tokenize_all(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(got.len(), want.len());
    let wrong: Vec<String> = (0..got.len())
        .filter(|&i| got[i] != want[i])
        .map(|i| format!("{}\n  want {}\n  got  {}", lines[i], want[i], got[i]))
        .collect();
    assert!(wrong.is_empty(), "{} lines differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn captions_become_the_same_words() {
    let g = golden();
    same_words(&lists(&g["captions"]).concat(), &lists(&g["words"]).concat());
    same_words(&strings(&g["corrupted"]["captions"]), &strings(&g["corrupted"]["words"]));
}

#[test]
fn odd_lines_become_the_same_words() {
    let g = golden();
    same_words(&strings(&g["nasty"]["lines"]), &strings(&g["nasty"]["words"]));
}

#[track_caller]
fn same_scores(refs: &[Vec<String>], captions: &[String], want: &Value) {
    let s = score(refs, captions).unwrap();
    // Sums in another order; the numbers per image were rounded to nine digits.
    let close = |got: f64, want: &Value, tolerance: f64| {
        let want = want.as_f64().unwrap();
        assert!((got - want).abs() < tolerance, "{got} {want}");
    };
    (0..4).for_each(|k| close(s.bleu[k], &want["bleu"][k], 1e-9));
    close(s.rouge_l, &want["rouge_l"], 1e-9);
    close(s.cider_d, &want["cider_d"], 1e-9);
    for (i, image) in s.per_image.iter().enumerate() {
        close(image.rouge_l, &want["rouge_l_images"][i], 1e-8);
        close(image.cider_d, &want["cider_d_images"][i], 1e-8);
    }
}

#[test]
fn a_human_caption_scores_the_same_against_the_others() {
    let g = golden();
    let all = lists(&g["captions"]);
    let refs: Vec<Vec<String>> = all.iter().map(|c| c[1..].to_vec()).collect();
    let captions: Vec<String> = all.iter().map(|c| c[0].clone()).collect();
    same_scores(&refs, &captions, &g["human"]);
}

#[test]
fn corrupted_and_empty_captions_score_the_same() {
    let g = golden();
    same_scores(&lists(&g["captions"]), &strings(&g["corrupted"]["captions"]), &g["corrupted"]);
}

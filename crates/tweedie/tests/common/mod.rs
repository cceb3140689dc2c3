//! What several tests of networks share.

use tweedie::model::Model;

/// Hold the gradient of parameter `name`, which a backward pass has left in `model`, against central differences of `loss`, at one number in `every`.
/// Gives the gradient.
pub fn assert_gradient(
    model: &mut Model,
    name: &str,
    every: usize,
    what: &str,
    loss: impl Fn(&Model) -> f32,
) -> Vec<f32> {
    const STEP: f32 = 1e-2;
    let id = model.params.find(name).unwrap();
    let (start, grad) = (model.params.value(id).to_vec().unwrap(), model.params.grad(id).unwrap().to_vec().unwrap());
    for i in (0..start.len()).step_by(every) {
        let mut at = |by: f32| {
            let mut v = start.clone();
            v[i] += by;
            model.params.set(id, &v).unwrap();
            loss(model)
        };
        let want = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        model.params.set(id, &start).unwrap();
        assert!((grad[i] - want).abs() < 2e-3 * (1.0 + want.abs()), "{what} {name} {i}: {} {want}", grad[i]);
    }
    grad
}

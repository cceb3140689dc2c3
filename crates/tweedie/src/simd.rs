//! Loops for the vectors of the machine at hand.

/// Run `f` compiled for the widest vectors of this machine. Its result does not depend on them.
#[inline(always)]
pub(crate) fn simd<R>(f: impl FnOnce() -> R) -> R {
    struct Call<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Call<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Call(f))
}

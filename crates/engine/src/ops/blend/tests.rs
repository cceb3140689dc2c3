use super::*;
use crate::Device;
use crate::cases::random;

#[test]
fn columns_are_products_with_one_hot_vectors() {
    let (rows, d, v) = (700, 5, 13);
    let by = Tensor::from_f32(&Device::Cpu, &[3], vec![0.5, -2.0, 3.0]).unwrap();
    let (m, y, z) = (random(0, &[d, v], 1.0), random(1, &[rows, d], 1.0), random(2, &[rows, d], 1.0));
    let ids = Tensor::from_u32(&Device::Cpu, &[rows], (0..rows as u32).map(|r| r * 5 % v as u32).collect()).unwrap();
    let got = blend(&by, First::Columns { matrix: &m, ids: &ids }, Some(&y), Some(&z)).unwrap();
    let (m, y, z) = (m.to_vec().unwrap(), y.to_vec().unwrap(), z.to_vec().unwrap());
    for (i, got) in got.to_vec().unwrap().into_iter().enumerate() {
        let want = 0.5 * m[i % d * v + (i / d) * 5 % v] - 2.0 * y[i] + 3.0 * z[i];
        assert!((got - want).abs() < 1e-5, "{got} {want}"); // a few roundings of numbers of a few units
    }
}

#[test]
fn each_row_may_have_coefficients_of_its_own() {
    let (rows, d) = (5, 3);
    let by = random(3, &[rows, 3], 1.0);
    let (x, z) = (random(1, &[rows, d], 1.0), random(2, &[rows, d], 1.0));
    let got = blend(&by, First::Values(&x), None, Some(&z)).unwrap().to_vec().unwrap();
    let [by, x, z] = [by, x, z].map(|t| t.to_vec().unwrap());
    for (i, got) in got.into_iter().enumerate() {
        let want = by[i / d * 3] * x[i] + by[i / d * 3 + 2] * z[i];
        assert!((got - want).abs() < 1e-6, "{got} {want}");
    }
    let z = random(2, &[rows, d], 1.0);
    assert!(blend(&random(3, &[rows - 1, 3], 1.0), First::Values(&z), None, Some(&z)).is_err());
}

#[test]
fn absent_terms_are_zero_and_wrong_ones_errors() {
    let by = Tensor::from_f32(&Device::Cpu, &[3], vec![2.0, 7.0, 3.0]).unwrap();
    let (x, z) = (random(1, &[4, 3], 1.0), random(2, &[4, 3], 1.0));
    let got = blend(&by, First::Values(&x), None, Some(&z)).unwrap().to_vec().unwrap();
    for ((g, x), z) in got.iter().zip(x.to_vec().unwrap()).zip(z.to_vec().unwrap()) {
        assert!((g - (2.0 * x + 3.0 * z)).abs() < 1e-6);
    }
    assert!(blend(&by, First::Values(&x), None, None).is_err());
    assert!(blend(&by, First::Values(&x), Some(&random(0, &[4, 2], 1.0)), None).is_err());
    assert!(blend(&by, First::Values(&x), Some(&z), Some(&random(0, &[3, 3], 1.0))).is_err());
    let ids = Tensor::from_u32(&Device::Cpu, &[4], vec![0, 1, 5, 0]).unwrap();
    let e = blend(&by, First::Columns { matrix: &random(0, &[3, 5], 1.0), ids: &ids }, Some(&z), None);
    assert!(e.err().unwrap().to_string().contains("id 5 at position 2"));
}

#[test]
fn pairs_are_guided_each_by_its_own() {
    let pairs = Tensor::from_f32(&Device::Cpu, &[4, 2], vec![1.0, 2.0, 10.0, 20.0, -1.0, 0.5, 4.0, 0.5]).unwrap();
    let weight = |w| Tensor::from_f32(&Device::Cpu, &[1], vec![w]).unwrap();
    let guided = |w| guide(&pairs, &weight(w)).unwrap();
    assert_eq!(guided(3.0).shape(), [2, 2]);
    assert_eq!(guided(3.0).to_vec().unwrap(), [-17.0, -34.0, -11.0, 0.5]); // u + 3·(c − u)
    assert_eq!(guided(1.0).to_vec().unwrap(), [1.0, 2.0, -1.0, 0.5]);
    assert_eq!(guided(0.0).to_vec().unwrap(), [10.0, 20.0, 4.0, 0.5]);
    assert!(guide(&random(0, &[3, 2], 1.0), &weight(1.0)).is_err());
    let each = Tensor::from_f32(&Device::Cpu, &[2], vec![3.0, 0.0]).unwrap();
    assert_eq!(guide(&pairs, &each).unwrap().to_vec().unwrap(), [-17.0, -34.0, 4.0, 0.5]);
    assert!(guide(&pairs, &random(0, &[3], 1.0)).is_err());
}

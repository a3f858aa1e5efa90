// A plain matrix-vector product over the packed Q8_0 and Q4_1 words, as one would write it by hand without CubeCL.
@group(0) @binding(0) var<storage, read_write> w: array<u32>;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read> info: array<u32>;

fn q8(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(word));
}

fn low(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let blocks = info[0];
    let n = info[1];
    if (id.x >= n) { return; }
    var sum = 0.0;
    for (var b = 0u; b < blocks; b++) {
        let xb = b * 8u;
        {{ body }}
    }
    out[id.x] = sum;
}

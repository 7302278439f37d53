// Reads what encoding.py wrote: base64, gzip, a header, columns.

const ARRAYS = {
  int32: Int32Array,
  uint32: Uint32Array,
  uint16: Uint16Array,
  uint8: Uint8Array,
  float32: Float32Array,
  float64: Float64Array,
};

const OUTSIDE = 0xffffffff;

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) {
    return Uint8Array.fromBase64(text);
  }
  const decoded = atob(text);
  const bytes = new Uint8Array(decoded.length);
  for (let i = 0; i < bytes.length; i += 1) {
    bytes[i] = decoded.charCodeAt(i);
  }
  return bytes;
}

async function decode(text) {
  const compressed = new Blob([bytesOfBase64(text)]).stream();
  const stream = compressed.pipeThrough(new DecompressionStream('gzip'));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = {};
  for (const [name, type, begin, count] of header.columns) {
    columns[name] = new ARRAYS[type](buffer, 4 + length + begin, count);
  }
  return {header, columns};
}

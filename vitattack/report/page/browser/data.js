// The content of the page: names and figures as JSON, and columns with a number per image, inflated when first asked for.
const content = JSON.parse(byId('content').textContent);

const HALF = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    table[bits] = sign * (exponent === 31 ? (fraction ? NaN : Infinity)
      : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  }
  return table;
})();
const TYPES = { u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, f2: Uint16Array };
let block = null;
const unpacked = new Map();

async function inflate() {
  const text = atob(byId('columns').textContent);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = text.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  block = await new Response(stream).arrayBuffer();
}

function column(place) {
  const key = `${place.at} ${place.type} ${place.n}`;
  if (!unpacked.has(key)) {
    let values = new TYPES[place.type](block, place.at, place.n);
    if (place.type === 'f2') values = Float32Array.from(values, (bits) => HALF[bits]);
    unpacked.set(key, values);
  }
  return unpacked.get(key);
}

// A run with its columns by name.
function samplesOf(run) {
  run.samples ??= Object.fromEntries(Object.entries(run.columns).map(([key, place]) => [key, column(place)]));
  return run.samples;
}

const ROBUST = content.statuses.indexOf('robust');
const FOOLED = content.statuses.indexOf('fooled');

const className = (images, label) => (label < 0 ? '' : images.classes[label] ?? String(label));
const stageName = (run, stage) => (stage < 0 ? '' : run.stages[stage] ?? `stage ${stage}`);
const runName = (run) => `${run.model}, ${run.attack}, ${run.threat}`;

// Where each image stands in the columns, by its index in the data set.
function placeOf(images, index) {
  images.places ??= new Map(Array.from(column(images.index), (value, at) => [value, at]));
  return images.places.get(index);
}

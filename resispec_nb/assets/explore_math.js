// One node in a browser: the arithmetic of chapters 00 to 05, in double precision. Checked against Python by tests/test_site.py.

/** 16-bit floats in base64 -> doubles. */
export function halves(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0)), out = new Float64Array(bytes.length/2);
  for (let i = 0; i < out.length; i++) {
    const h = bytes[2*i] | bytes[2*i + 1] << 8, s = h & 0x8000 ? -1 : 1, e = h >> 10 & 31, f = h & 1023;
    out[i] = e === 31 ? (f ? NaN : s*Infinity) : e ? s*2**(e - 15)*(1 + f/1024) : s*2**-14*f/1024;
  }
  return out;
}

const sum = x => x.reduce((a, b) => a + b, 0);
const scaled = (x, c) => x.map(v => v*c);

/** The law of logits z at temperature T. */
export function law(z, T) {
  const top = z.reduce((a, b) => Math.max(a, b), -Infinity), e = z.map(v => Math.exp((v - top)/T));
  return scaled(e, 1/sum(e));
}

/** E(C) = sum of (p - Cq)+, the target mass above the level C. */
export function excess(p, q, C) {
  let s = 0;
  for (let i = 0; i < p.length; i++) { const d = p[i] - C*q[i]; if (d > 0) s += d; }
  return s;
}

/** The part of the window [lo, hi] that the bar of height p/q fills. */
export function filled(p, q, lo, hi, height) {
  const whole = height*q;
  return whole > 0 ? Math.min(1, (Math.min(p, hi*q) - Math.min(p, lo*q))/whole) : 0;
}

/** SpecInfer: windows stacked upwards in test order. */
function up(p, q, k) {
  const lo = [], hi = [], reach = [1];
  for (let i = 0, end = 0; i < k; i++) {
    lo.push(end); end += reach[i]; hi.push(end);
    reach.push(Math.max(0, reach[i] - (excess(p, q, lo[i]) - excess(p, q, end))));
  }
  return {lo, hi, height: reach.slice(0, k), reach};
}

/** ResiSpec: windows hung downwards from the best top, found by bisection. */
function down(p, q, k) {
  const bottom = C1 => { const eps = excess(p, q, C1); let C = C1 - 1; for (let i = 1; i < k; i++) C += excess(p, q, C) - 1 - eps; return C; };
  let a = 1, b = Math.max(k, 1);
  for (let i = 0; i < 60 && a < b; i++) { const x = (a + b)/2; if (bottom(x) < -4*k*2.220446049250313e-16) a = x; else b = x; }
  const lo = [], hi = [], reach = [1];
  for (let i = 0, end = b; i < k; i++) {
    hi.push(end); end = Math.max(0, end - reach[i]); lo.push(end);
    reach.push(Math.max(0, reach[i] - (excess(p, q, end) - excess(p, q, hi[i]))));
  }
  return {lo, hi, height: reach.slice(0, k), reach};
}

/** K-SEQ: one stretched window for all candidates. */
function stretched(p, q, k) {
  let a = 1, b = k;
  for (let i = 0; i < 54; i++) { const rho = (a + b)/2, F = 1 - excess(p, q, rho); if (1 - (1 - F/rho)**k > F) a = rho; else b = rho; }
  const miss = 1 - (1 - excess(p, q, b))/b, same = Array(k).fill(b);
  return {lo: Array(k).fill(0), hi: same, height: same, reach: Array.from({length: k + 1}, (_, i) => miss**i)};
}

/** Anchored: the likeliest draft tokens are certain, and tested after shaped draws of the rest. */
function anchored(p, q, k) {
  const order = Array.from(q.keys()).sort((i, j) => q[j] - q[i] || i - j), T = [];
  for (let m = 0, seen = 0; m < k - 1 && m < q.length; seen += q[order[m++]]) { if (q[order[m]] <= 0 || (k - m)*q[order[m]] < 1 - seen) break; T.push(order[m]); }
  const without = x => { const y = Float64Array.from(x); T.forEach(t => y[t] = 0); return y; };
  let rest = without(q); const total = sum(rest), n = total > 0 ? k - T.length : 0;
  rest = scaled(rest, 1/Math.max(total, 2.2e-308));
  const plan = n ? down(without(p), rest, n) : {lo: [], hi: [], height: [], reach: [1]};
  for (const t of T) plan.reach.push(Math.max(0, plan.reach.at(-1) - p[t]));
  return {...plan, q: rest, p: without(p), anchors: T, draws: n};
}

const PLANS = {specinfer: up, kseq: stretched, resispec: down, anchored};

/** Best acceptance of any exact rule with these draws. */
function bottleneck(p, q, k, certain = 0) {
  const order = Array.from(p.keys()).sort((i, j) => (p[i] > 0 ? p[i]/q[i] : 0) - (p[j] > 0 ? p[j]/q[j] : 0) || 0);
  let P = 0, Q = 0, low = 0;
  for (const i of order) { P += p[i]; Q += q[i]; low = Math.min(low, certain + P - Q**k); }
  return 1 + low;
}
export const ceiling = (p, q, k) => bottleneck(p, q, k);
export function anchoredCeiling(p, q, k) {
  const {q: rest, p: left, anchors, draws} = anchored(p, q, k), mass = anchors.reduce((s, t) => s + p[t], 0);
  return draws ? bottleneck(left, rest, draws, mass) : mass;
}

/** The first n - 1 tokens, and all others as one. */
export const lumped = (x, n) => [...x.slice(0, n - 1), sum(x.slice(n - 1))];

/** Biased: output law and acceptance of the published rule (deficit spread over the room), by enumeration of all candidates. */
export function published(p, q, k) {
  const law = p.map(() => 0); let acceptance = 0;
  const step = (R, weight, left) => {
    if (!left) { R.forEach((r, i) => law[i] += weight*r); return; }
    q.forEach((qx, x) => {
      if (!(qx > 0)) return;
      const a = Math.min(1, R[x]/qx), won = weight*qx*a, lost = weight*qx*(1 - a), Z = qx - R[x];
      law[x] += won; acceptance += won;
      if (!(lost > 0)) return;
      const r = R.map((v, i) => i === x ? 0 : Math.min(Z*q[i], v)), room = R.map((v, i) => i === x ? 0 : v - r[i]);
      const missing = Math.max(0, Z - sum(r)), space = sum(room), next = r.map((v, i) => v + (space > 0 ? missing*room[i]/space : 0)), all = sum(next);
      step(next.map(v => v/all), lost, left - 1);
    });
  };
  step(p, 1, k);
  return {law, acceptance, bias: sum(law.map((v, i) => Math.abs(v - p[i])))/2};
}

/** Everything the page shows of one node. */
export function look(p, q, k, rule) {
  const plan = PLANS[rule](p, q, k), {lo, hi, height, reach} = plan, draft = plan.q ?? q, bars = plan.p ?? p;
  let left = Float64Array.from(p); const residuals = [left], blind = [1 - sum(left.map((v, i) => Math.min(v, q[i])))];
  for (let i = 0; i < k; i++) {
    left = left.slice();
    if (i < lo.length) for (let x = 0; x < p.length; x++) left[x] = Math.max(0, left[x] - reach[i]*draft[x]*filled(bars[x], draft[x], lo[i], hi[i], height[i]));
    else left[plan.anchors[i - lo.length]] = 0;
    const total = sum(left), r = reach[i + 1] > 1e-12 ? scaled(left, 1/total) : scaled(left, 0);
    residuals.push(r); blind.push(reach[i + 1] > 1e-12 ? 1 - sum(r.map((v, j) => Math.min(v, q[j]))) : 0);
  }
  return {...plan, draft, bars, residuals, blind, anchors: plan.anchors ?? [], rank: Array.from({length: k}, (_, i) => reach[i] - reach[i + 1]), acceptance: 1 - reach[k]};
}

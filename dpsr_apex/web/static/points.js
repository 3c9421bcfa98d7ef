// Millions of points, drawn with WebGL: all of them, none is left out.

const VERTEX = `#version 300 es
in float fromX, fromY, toX, toY, look, shown;
uniform vec4 view;
uniform float mixing, size;
uniform vec3 palette[4];
out vec3 colour;
out float diamond;
void main() {
  vec2 place = mix(vec2(fromX, fromY), vec2(toX, toY), mixing);
  gl_Position = shown > 0.5 ? vec4((place - view.xy) * view.zw * 2.0 - 1.0, 0.0, 1.0) : vec4(2.0, 2.0, 2.0, 1.0);
  diamond = step(3.5, look);
  float kind = look - 4.0 * diamond;
  gl_PointSize = size * (kind > 0.5 ? 1.35 : 1.0) * (1.0 + 0.3 * diamond);
  colour = palette[int(kind + 0.5)];
}`;
const FRAGMENT = `#version 300 es
precision mediump float;
in vec3 colour;
in float diamond;
uniform float opacity, sharp;
out vec4 result;
void main() {
  vec2 place = abs(gl_PointCoord - 0.5);
  float away = mix(length(place), place.x + place.y, diamond);
  float alpha = opacity * mix(1.0 - smoothstep(0.36, 0.5, away), 1.0, sharp);
  result = vec4(colour * alpha, alpha);
}`;
const SIZES = { fromX: 4, fromY: 4, toX: 4, toY: 4, look: 1, shown: 1 }; // bytes of a point's value
const ENDS = { fromX: "toX", fromY: "toY" }; // where points are that do not move

export class Points {
  /** `onRestored` is called when the browser has taken the graphics memory away and given it back. */
  constructor(canvas, onRestored) {
    this.canvas = canvas;
    this.gl = canvas.getContext("webgl2", {
      antialias: false,
      alpha: true,
      depth: false,
      premultipliedAlpha: true,
      preserveDrawingBuffer: true,
    });
    if (!this.gl) throw new Error("The map needs WebGL 2, which this browser does not provide.");
    this.prepare();
    canvas.addEventListener("webglcontextlost", event => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => {
      this.prepare();
      onRestored();
    });
  }

  prepare() {
    const gl = this.gl,
      program = gl.createProgram();
    for (const [kind, source] of [
      [gl.VERTEX_SHADER, VERTEX],
      [gl.FRAGMENT_SHADER, FRAGMENT],
    ]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost())
      throw new Error(gl.getProgramInfoLog(program));
    this.uniforms = Object.fromEntries(
      ["view", "mixing", "size", "palette", "opacity", "sharp"].map(name => [
        name,
        gl.getUniformLocation(program, name),
      ]),
    );
    this.buffers = Object.fromEntries(Object.keys(SIZES).map(name => [name, gl.createBuffer()]));
    this.attributes = Object.fromEntries(Object.keys(SIZES).map(name => [name, gl.getAttribLocation(program, name)]));
    for (const place of Object.values(this.attributes)) gl.enableVertexAttribArray(place);
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  /** Upload one value for each point: a place on an axis, its look (its kind, plus 4 for a diamond), or whether it is shown. */
  put(name, values) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, values, this.gl.DYNAMIC_DRAW);
  }

  /** Begin a picture. */
  clear() {
    const gl = this.gl;
    gl.disable(gl.SCISSOR_TEST);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
  }

  /** Add points to the picture, in a box (left, bottom, width and height in pixels of the canvas).
   *
   * Each part has the points `first`, `first + every`, `first + 2 * every`, …: `count` of them.
   */
  draw(parts, { box, view, mixing, size, opacity, palette }) {
    const gl = this.gl,
      uniforms = this.uniforms;
    gl.enable(gl.SCISSOR_TEST);
    gl.scissor(...box);
    gl.viewport(...box);
    gl.uniform4f(uniforms.view, view.left, view.bottom, 1 / (view.right - view.left), 1 / (view.top - view.bottom));
    gl.uniform1f(uniforms.mixing, mixing);
    gl.uniform1f(uniforms.size, size);
    gl.uniform1f(uniforms.opacity, opacity);
    gl.uniform1f(uniforms.sharp, size < 3 ? 1 : 0);
    gl.uniform3fv(uniforms.palette, palette.flat());
    for (const { first, every, count } of parts) {
      for (const [name, bytes] of Object.entries(SIZES)) {
        gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[mixing < 1 ? name : (ENDS[name] ?? name)]);
        gl.vertexAttribPointer(
          this.attributes[name],
          1,
          bytes === 1 ? gl.UNSIGNED_BYTE : gl.FLOAT,
          false,
          bytes * every,
          bytes * first,
        );
      }
      gl.drawArrays(gl.POINTS, 0, count);
    }
  }

  end() {
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }
}

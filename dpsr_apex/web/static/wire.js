// The connection to an emulator process: commands out, events and pictures back.

const TEXT = new TextDecoder();

export class Wire {
  /** `onEvent(head, parts)` is called for each event; `onEnd(reason)` when the connection is over. */
  constructor(path, onEvent, onEnd) {
    const url = new URL(path, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    this.socket = new WebSocket(url);
    this.socket.binaryType = "arraybuffer";
    this.waiting = [];
    this.reason = "";
    this.socket.onopen = () => {
      for (const text of this.waiting.splice(0)) this.socket.send(text);
    };
    this.socket.onmessage = message => {
      const buffer = message.data,
        length = new DataView(buffer).getUint32(0, true),
        head = JSON.parse(TEXT.decode(new Uint8Array(buffer, 4, length)));
      let place = 4 + length;
      const parts = head.sizes.map(size => {
        const part = new Uint8Array(buffer, place, size);
        place += size;
        return part;
      });
      if (head.event === "crashed" || head.event === "refused") this.reason = head.reason;
      onEvent(head, parts);
    };
    this.socket.onclose = () => onEnd(this.reason || "The connection to the emulator was closed.");
  }

  send(command, given = {}) {
    const text = JSON.stringify({ do: command, ...given });
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(text);
    else if (this.socket.readyState === WebSocket.CONNECTING) this.waiting.push(text);
  }

  close() {
    this.socket.onclose = null;
    this.socket.close();
  }
}

/** A picture from the bytes of a PNG. */
export async function picture(bytes) {
  return createImageBitmap(new Blob([bytes], { type: "image/png" }));
}

/** Paint a grey picture as a heat map over another one: black is transparent, white is bright. */
export function paintHeat(canvas, heat) {
  canvas.width = heat.width;
  canvas.height = heat.height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(heat, 0, 0);
  const image = context.getImageData(0, 0, heat.width, heat.height),
    data = image.data;
  for (let place = 0; place < data.length; place += 4) {
    const value = data[place] / 255;
    data[place] = 255;
    data[place + 1] = Math.round(60 + 170 * value);
    data[place + 2] = Math.round(40 * (1 - value));
    data[place + 3] = Math.round(235 * value ** 1.4);
  }
  context.putImageData(image, 0, 0);
}

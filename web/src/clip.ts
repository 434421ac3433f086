/** Any view as a clip of six seconds: played from its beginning to its end, and filmed. */

import { imageOf } from "./save";
import { seek } from "./player";
import { download } from "./download";

const SECONDS = 6;
const FRAMES = 12; // a second: each is drawn anew, with its styles

/** Whether this browser can write clips. */
export const canFilm = (): boolean =>
  typeof MediaRecorder === "function" && "captureStream" in HTMLCanvasElement.prototype;

export async function saveClip(
  section: string,
  name: string,
  title: string,
  says: (share: number) => void,
): Promise<void> {
  const canvas = document.createElement("canvas");
  const first = await imageOf(section, title);
  if (!first) return;
  const scale = Math.min(1, 1280 / first.width);
  // Even numbers: some players want them.
  [canvas.width, canvas.height] = [first.width, first.height].map((side) => 2 * Math.ceil((side * scale) / 2));
  const pen = canvas.getContext("2d")!;
  const stream = canvas.captureStream(0);
  const [track] = stream.getVideoTracks() as CanvasCaptureMediaStreamTrack[];
  const recorder = new MediaRecorder(stream, { mimeType: "video/webm", videoBitsPerSecond: 4_000_000 });
  const parts: Blob[] = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  const ended = new Promise((done) => (recorder.onstop = done));
  recorder.start();
  const begin = performance.now();
  const all = SECONDS * FRAMES;
  for (let frame = 0; frame <= all; frame++) {
    seek(Math.min(1, frame / (0.9 * all))); // it rests at its end
    await new Promise(requestAnimationFrame);
    const picture = await imageOf(section, title);
    if (picture) pen.drawImage(picture.image, 0, 0, canvas.width, canvas.height);
    track.requestFrame();
    says(frame / all);
    await new Promise((done) =>
      setTimeout(done, Math.max(0, begin + (1000 * (frame + 1)) / FRAMES - performance.now())),
    );
  }
  recorder.stop();
  await ended;
  download(new Blob(parts, { type: "video/webm" }), `${name}.webm`);
}

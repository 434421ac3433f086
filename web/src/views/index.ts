/** The views of the page, one line each. */

export { view as bytes } from "./bytes";
export { view as code } from "./code";
export { view as holds } from "./holds";
export { view as race } from "./race";
export { view as time } from "./time";
export { view as wins } from "./wins";

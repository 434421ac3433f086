/** What was made of an entry, kept for as long as the entry is; `kind` tells apart what is made of the same one. */
export function remembered<Of extends object, Made, Kind = void>(
  make: (of: Of, kind: Kind) => Made,
): (of: Of, kind: Kind) => Made {
  const all = new WeakMap<Of, Map<Kind, Made>>();
  return (of, kind) => {
    let known = all.get(of);
    if (!known) all.set(of, (known = new Map()));
    let made = known.get(kind);
    if (made === undefined) known.set(kind, (made = make(of, kind)));
    return made;
  };
}

/** Values computed from an entry, cached as long as the entry lives; `kind` distinguishes values of the same entry. */
export function remembered<Of extends object, Made, Kind = void>(
  make: (of: Of, kind: Kind) => Made,
): (of: Of, kind: Kind) => Made {
  const all = new WeakMap<Of, Map<Kind, Made>>();
  return (of, kind) => {
    let known = all.get(of);
    if (!known) all.set(of, (known = new Map<Kind, Made>()));
    let made = known.get(kind);
    if (made === undefined) known.set(kind, (made = make(of, kind)));
    return made;
  };
}

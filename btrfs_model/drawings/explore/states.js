// SPDX-License-Identifier: GPL-2.0-only
// What there is to be seen: disks, each in the states that its roots have. A state has trees, the blocks
// that are in them (`places`: address and pack), and what is wrong with those that cannot be read.

const states = new Map(); // by name: “” of the first disk, “@7” the same as its root of generation 7 has it
let shown = null; // the state

async function addDisk(disk) {
  disk.prefix = disk.key && `${disk.key}-`;
  const faults = JSON.parse(new TextDecoder().decode(await inflate(`${disk.prefix}faults`)));
  disk.states = disk.roots.map((root, number) => {
    const name = disk.key + (number ? `@${root.generation}` : "");
    const state = {disk, name, title: `${disk.key && `${disk.key}: `}${disk.name}, generation ${root.generation}`, places: new Map(), faults: faults[number]};
    state.trees = root.trees.map(tree => ({...tree, root: BigInt(tree.root), state}));
    if (state.trees.length) states.set(name, state);
    return state;
  });
  await readIndex(disk);
}

const treeIn = (state, id) => state?.trees.find(tree => tree.id === `${id}`);
// A tree by its id, of what is shown; or “5~@7”, of a state by its name.
function treeOf(id) {
  const [own, ...name] = `${id}`.split("~");
  return treeIn(name.length ? states.get(name.join("~")) : shown, own);
}
const treeName = tree => tree.state === shown ? tree.name : `${tree.name} of ${tree.state.title}`;

// What the address asks for, the sections, and what every page has.
function follow() {
  const words = new URLSearchParams(location.hash.slice(1));
  const dialog = byId('image');
  if (words.has('image') && content.sets.length) {
    const set = Math.min(Number(words.get('set') ?? 0) || 0, content.sets.length - 1);
    imageSheet(set, Number(words.get('image')));
    if (!dialog.open) dialog.showModal();
  } else if (dialog.open) dialog.close();
  if (words.has('compare')) compareRuns(words.get('compare').split(','));
}

function navigation() {
  for (const section of document.querySelectorAll('main > section[id]')) {
    byId('nav').append(h('a', { href: `#${section.id}` }, section.dataset.nav ?? section.querySelector('h2').textContent.split(',')[0]));
  }
  byId('image').addEventListener('close', () => {
    if (location.hash.includes('image=')) history.replaceState(null, '', location.pathname + location.search);
  });
  for (const button of document.querySelectorAll('.copy')) {
    button.hidden = false;
    button.addEventListener('click', async () => {
      const code = button.parentElement.querySelector('code');
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = 'Copied';
      } catch { // a page from a file may not be allowed to
        getSelection().selectAllChildren(code);
        button.textContent = 'Selected';
      }
      setTimeout(() => { button.textContent = 'Copy'; }, 1500);
    });
  }
}

navigation();
board();
figuresSection();
inflate().then(() => {
  compareSection();
  imagesSection();
  addEventListener('hashchange', follow);
  follow();
  document.documentElement.dataset.ready = 'yes';
}, () => { // without DecompressionStream, as before 2023
  for (const id of ['compare', 'images']) byId(id)?.querySelector('.filled').replaceChildren(h('p', { class: 'muted' }, 'This part needs a newer browser.'));
});

// Says so while the server does not answer: what the page shows is old then. Everything else is htmx and HTML.
(function () {
  'use strict'
  function tell(text) {
    var notice = document.getElementById('offline')
    if (notice && notice.textContent !== text) {
      notice.textContent = text
      notice.hidden = !text
    }
  }
  document.addEventListener('htmx:sendError', function () {
    tell('The page\'s server does not answer, so what you see may be old. `shiplift up` starts it. This page tries again by itself.')
  })
  document.addEventListener('htmx:afterOnLoad', function () { tell('') })
  document.addEventListener('htmx:sseError', function () { tell('The connection was lost. This page connects again by itself.') })
  document.addEventListener('htmx:sseBeforeMessage', function (event) {
    var log = event.target
    if (log.classList.contains('log') && log.scrollHeight - log.scrollTop - log.clientHeight < 40) {
      setTimeout(function () { log.scrollTop = log.scrollHeight }) // the reader is at its end: it stays there
    }
  })
  document.addEventListener('htmx:sseOpen', function () { tell('') })
})()
